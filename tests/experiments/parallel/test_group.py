"""Which process holds which micro-batches and sequences; a sequence on several devices learns the same."""

import itertools

import pytest
import torch
from support.program import Lab, steady_rows

from experiments.parallel import group, strategies
from experiments.planning.plan import plan
from experiments.runs import RunFolder
from zoo.errors import UserError

PROCESSES = 6


@pytest.fixture
def ranks(monkeypatch):
    """A pretended group of six processes: `ranks(n)` makes this one number n."""
    asked: list[tuple] = []
    monkeypatch.setattr(
        group.dist, "init_process_group", lambda backend, **given: asked.append((backend, given))
    )
    monkeypatch.setattr(group.dist, "destroy_process_group", lambda: asked.append(("destroyed",)))
    monkeypatch.setattr(group.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(group.dist, "new_group", lambda ranks, timeout: tuple(ranks))
    monkeypatch.setattr(group.dist, "get_world_size", lambda of=None: PROCESSES if of is None else len(of))

    def be(number: int) -> list[tuple]:
        monkeypatch.setattr(group.dist, "get_rank", lambda: number)
        return asked

    return be


@pytest.mark.parametrize("context", [1, 2, 3])
def test_neighbours_hold_a_sequence_together_and_share_its_micro_batches(ranks, context: int):
    replicas = PROCESSES // context
    for number in range(PROCESSES):
        asked = ranks(number)
        with group.joined(torch.device("cpu"), context):
            first = number - number % context
            own = None if context == 1 else tuple(range(first, first + context))
            assert (group.sequence(), group.context(), group.replicas()) == (own, context, replicas)
            assert group.replica() == number // context
            assert group.holds_main_s_sequence() == (number < context)
            assert group.share(12) == 12 // replicas
            mine = list(itertools.islice(group.own_micro_batches(12), 3))
            assert mine == [12 + number // context + turn * replicas for turn in range(3)]
            assert (group.size(), group.rank(), group.is_main()) == (PROCESSES, number, number == 0)
        assert group.sequence() is None
        assert asked[-1] == ("destroyed",)


def test_after_an_error_a_process_does_not_wait_for_the_others(ranks):
    asked = ranks(1)
    with pytest.raises(ValueError, match="mine"), group.joined(torch.device("cpu")):
        raise ValueError("mine")
    assert ("destroyed",) not in asked


@pytest.mark.parametrize(("local", "number"), [(None, 0), ("3", 3)])
def test_a_process_takes_the_gpu_of_its_number_on_this_machine(ranks, monkeypatch, local, number: int):
    """And talks to the others by gloo and NCCL; on a CPU by gloo alone."""
    chosen = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    asked, gpu = ranks(4), torch.device("cuda", number)
    for device in ("cuda", "cpu"):
        with group.joined(torch.device(device)):
            pass
    assert chosen == [gpu] == [group.own_device(torch.device("cuda"))]
    assert group.own_device(torch.device("cpu")) == torch.device("cpu")
    options = {"timeout": group.PATIENCE}
    assert [x for x in asked if x != ("destroyed",)] == [
        ("cpu:gloo,cuda:nccl", {**options, "device_id": gpu}),
        ("gloo", {**options, "device_id": None}),
    ]


@pytest.mark.parametrize("context", [1, 2])
def test_losses_stand_in_the_order_of_micro_batches_once_a_sequence(ranks, monkeypatch, context: int):
    """Process r has micro-batches r, r + N, ... of N replicas; those of one sequence have the same losses."""
    replicas, turns = PROCESSES // context, 2
    monkeypatch.setattr(group, "_sequence", tuple(range(context)) if context > 1 else None)
    ranks(0)

    def gathered(own):
        assert own.tolist() == [[0.0, 0.5], [replicas + 0.0, replicas + 0.5]]
        every = torch.arange(PROCESSES) // context
        begun = every[:, None] + replicas * torch.arange(turns)
        return torch.stack([begun, begun + 0.5], -1).float()

    monkeypatch.setattr(group, "gathered", gathered)
    own = [{"loss": torch.tensor(x * replicas), "aux": torch.tensor(x * replicas + 0.5)} for x in (0.0, 1.0)]
    found = group.losses_in_order(own)
    assert [{name: x.item() for name, x in row.items()} for row in found] == [
        {"loss": float(number), "aux": number + 0.5} for number in range(turns * replicas)
    ]


def test_one_process_alone_is_everybody():
    losses = [{"loss": torch.tensor(1.0)}]
    assert (group.size(), group.rank(), group.replicas(), group.share(5)) == (1, 0, 1, 5)
    assert (group.from_process("x", 0), group.from_all("x"), group.losses_in_order(losses)) == (
        "x",
        ["x"],
        losses,
    )
    assert group.gathered(torch.ones(2)).shape == (1, 2)


def test_only_the_last_backward_of_a_step_sums_over_replicas_and_sharded_models_always_do(monkeypatch):
    class Replicas(torch.nn.Module):
        """As PyTorch's: sums unless told otherwise."""

        require_backward_grad_sync = True

    monkeypatch.setattr(strategies, "DistributedDataParallel", Replicas)
    replicas, other = Replicas(), torch.nn.Linear(1, 1)
    for last in (False, True):
        strategies.sums_gradients(replicas, last)
        strategies.sums_gradients(other, last)
        assert replicas.require_backward_grad_sync == last
    assert not hasattr(other, "require_backward_grad_sync")


def test_on_a_gpu_nccl_sums_a_bucket_while_the_backward_goes_on(monkeypatch):
    asked, future = [], torch.futures.Future()

    def all_reduce(x, async_op):
        asked.append((x, async_op))
        return type("Work", (), {"get_future": lambda self: future})()

    bucket = type("Bucket", (), {"buffer": lambda self: tensor})()
    tensor = type("OnGpu", (), {"is_cuda": True})()
    monkeypatch.setattr(group.dist, "all_reduce", all_reduce)
    done = strategies.sum_bucket(None, bucket)
    assert asked == [(tensor, True)]
    future.set_result(["the sum"])
    assert done.wait() == "the sum"


@pytest.mark.parametrize(
    ("setting", "gpu", "device", "precision"),
    [("auto", True, "cuda", "bf16"), ("auto", False, "cpu", "fp32"), ("cpu", True, "cpu", "fp32")],
)
def test_the_gpu_is_taken_where_there_is_one_and_bf16_with_it(monkeypatch, setting, gpu, device, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    picked = group.pick_device(setting)
    assert picked.type == device
    assert [group.pick_precision(x, picked) for x in ("auto", "fp32", "bf16")] == [precision, "fp32", "bf16"]


@pytest.mark.parametrize(("device", "devices"), [("cpu", None), ("cuda:3", [3])])
def test_replicas_stand_on_their_device_and_sum_in_a_fixed_order_without_touching_buffers(
    monkeypatch, device: str, devices
):
    """And a step may leave parameters unused."""
    asked = []

    class Replicas:
        def __init__(self, compute, **options) -> None:
            asked.append((compute, options))

        def register_comm_hook(self, state, hook) -> None:
            asked.append((state, hook))

    monkeypatch.setattr(strategies, "DistributedDataParallel", Replicas)
    model = type("Model", (), {"to": lambda self, device: asked.append(device)})()
    assert isinstance(strategies.replicate(model, "compiled", torch.device(device)), Replicas)
    options = {"device_ids": devices, "find_unused_parameters": True, "broadcast_buffers": False}
    assert asked == [torch.device(device), ("compiled", options), (None, strategies.sum_bucket)]


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    group.check_devices("cuda", 2)
    group.check_devices("cpu", 9)
    with pytest.raises(UserError, match=r"trainer\.devices=3, but PyTorch sees 2 CUDA device\(s\) here"):
        group.check_devices("auto", 3)


MODEL = ["model=transformer", "model.pattern=KF", "model.depth=2", "trainer.log_every=1"]
CUT = ["trainer.devices=2", "trainer.context=2"]
CASES = {
    "ddp": CUT,
    "fsdp": [*CUT, "trainer.strategy=fsdp"],
    "documents": [*CUT, "data.pack=document", "model.pattern=GS"],
    "beside data parallelism": ["trainer.devices=4", "trainer.context=2", "trainer.accumulate=2"],
    "documents beside it": [
        *("trainer.devices=4", "trainer.context=2", "trainer.accumulate=2"),
        *("data.pack=document", "model.pattern=GS"),
    ],
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_shards_learn_what_one_process_learns(case, tmp_path, small_text, shared_cache):
    """Loss and gradient norm of 20 steps: to rounding, which twenty steps of AdamW make larger.

    A gradient that lacks another shard's part, or is divided by the shards, has another norm.
    """
    own = [word for word in CASES[case] if word.split("=")[0] not in ("trainer.devices", "trainer.context")]
    one, cut = (Lab(tmp_path / name, small_text, shared_cache) for name in ("one", "cut"))
    for lab, words in ((one, own), (cut, CASES[case])):
        lab.done(*{w.partition("=")[0]: w for w in (*MODEL, *words)}.values())
    assert one.run_folder().name == cut.run_folder().name
    pairs = list(zip(steady_rows(one.run_folder()), steady_rows(cut.run_folder()), strict=True))
    assert sum(a["split"] == "train" for a, _ in pairs) == 20
    for a, b in pairs:
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
        if a["split"] == "train":
            assert float(a["grad_norm"]) == pytest.approx(float(b["grad_norm"]), rel=1e-3)
    found, wanted = (RunFolder(lab.run_folder()).summary() for lab in (cut, one))
    assert found["processes"] == int(CASES[case][0].rpartition("=")[2])
    assert found["metrics"]["test"]["loss"] == pytest.approx(wanted["metrics"]["test"]["loss"], rel=1e-5)
    assert found["metrics"]["test"]["tokens"] == wanted["metrics"]["test"]["tokens"]


@pytest.mark.slow
def test_shards_are_no_part_of_what_a_run_is(lab: Lab):
    plain, cut = (plan(lab.compose(*MODEL, *words)[0]) for words in ([], CUT))
    assert plain.run == cut.run
