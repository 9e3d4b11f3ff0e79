"""A sequence cut over the ranks of a process group: every block computes and learns as in one piece."""

import os
import re
import subprocess
import sys

import pytest
import torch
from support import context_precision as precision
from support.context_cases import MISTAKES, TIME, errors_by_size, smoke
from support.context_traffic import SWAPPED, by_token, tabled
from support.context_training import train
from support.contract_cases import Case, build, cases, tokens
from support.margins import above, below
from support.ranks import on_ranks
from support.shared import once
from support.tree_copy import ROOT

import zoo.context_parallel
from zoo import Context, Dims, UserError, registry
from zoo.context_parallel import Shard

LIMIT = 1e-9
SIZES = (2, 4)
NAMES = [str(case) for case in cases()]
PAGE = (ROOT / "docs/context.md").read_text(encoding="utf-8")
TABLED = {row[2]: row[0] for row in re.finditer(r"^\| `(.)` (\w+) \|.*\|$", PAGE, re.MULTILINE)}
"""The rows of its table of exchanges, by mixer."""


@pytest.fixture(scope="module")
def errors(request, tmp_path_factory) -> list[dict]:
    """What every rank found of every case that is to be tested: one start of ranks for all, as that takes seconds."""
    items = (item for item in request.session.items if "errors" in getattr(item, "fixturenames", ()))
    names = sorted({item.callspec.params["name"] for item in items})
    return once(tmp_path_factory, "errors", lambda: on_ranks(4, errors_by_size, names, (1, 2, 3), SIZES))


def assert_small(found: dict[str, dict], limit: float = LIMIT) -> None:
    assert found
    for where, by_tensor in found.items():
        for tensor, error in by_tensor.items():
            below(error, limit, f"{where} {tensor}")


@pytest.mark.slow
def test_mixers_on_two_ranks_are_the_mixers_receive_what_the_table_says_and_mistakes_would_show():
    """In one test, as ranks are started once for it."""
    first, second = on_ranks(2, smoke)
    for found in (first, second):
        assert_small(found["errors"])
        assert_small(found["fallback"])
        assert found["gradients"] == [4.0, 3.0, None]
        assert_small({"losses": found["losses"]})
    for place in MISTAKES:
        above(max(max(found["mistakes"][place].values()) for found in (first, second)), 1e-3, place)
    for name in TABLED:
        mixer = build(Case("mixer", name).config()).layers[0].mixer
        assert second["received"][name] == tabled(name, mixer, batch=2, time=TIME, ranks=2), name


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_blocks_in_shards_are_the_blocks(name, size, errors):
    """Outputs, losses, gradients of inputs and parameters; rows, documents across borders; training and evaluation."""
    for rank in errors:
        assert_small({where: found for where, found in rank[size].items() if where.split()[0] == name})


def test_the_tables_bytes_a_token_are_those_of_the_reference_size():
    assert len(TABLED) == 10
    for name, row in TABLED.items():
        block = registry.get("mixer", name)
        mixer = block.cls(block.config(), Dims(768, 12, 1024, 0, 14))
        size = sum(numbers * width for numbers, width in by_token(name, mixer))
        assert row.endswith(f"| {size:,}{'/N' if name in SWAPPED else ''} |")


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "model"),
    [
        (2, ("add", "swiglu", "none")),
        (4, ("mhc", "moe", "none")),
        (2, ("shc", "moe", "full")),
        (2, ("ohc", "swiglu", "selective")),
    ],
    ids=lambda x: x if isinstance(x, int) else "-".join(x),
)
def test_twenty_steps_in_shards_are_twenty_steps_of_one_process(size, model):
    """Losses, gradient norms and parameters."""
    wanted = train(*model)
    for got in on_ranks(size, train, *model):
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            below((got[name] - value).abs().max() / value.abs().max().clamp_min(1.0), LIMIT, name)


@pytest.mark.long
@pytest.mark.parametrize(("triton", "limit"), [(True, 1e-4), (False, 0.05)], ids=["triton", "bf16"])
def test_mixers_by_the_kernels_and_in_the_precision_of_a_gpu(triton, limit):
    """Triton's interpreter in fp32; bf16 autocast, which rounds to 4e-3 what either side adds up in another order."""
    for found in on_ranks(2, precision.errors, triton):
        assert set(precision.TRITON) <= set(found) if triton else len(found) >= 10
        assert_small(found, limit)


@pytest.mark.long
def test_the_example_of_the_docs_prints_the_same_losses_on_one_process_and_on_two(tmp_path):
    (tmp_path / "train.py").write_text(PAGE.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    printed = []
    for processes in (1, 2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]  # a free port
        command = [*torchrun, f"--nproc-per-node={processes}", "train.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        printed.append([float(line.split()[-1]) for line in done.stdout.splitlines()])
    one, two = printed
    assert len(one) == 3
    for a, b in zip(one, two, strict=True):
        below(abs(a - b), 1e-3)  # printed to 1e-4, of fp32


def test_without_a_process_group_there_are_no_shards():
    with pytest.raises(UserError, match="torchrun"):
        Context.of(tokens(1, TIME)).cut()


@pytest.mark.parametrize(
    ("ctx", "said"),
    [
        (Context.of(tokens(1, 10)), "10 tokens cannot be cut into 4 equal shards"),
        (Context.of(tokens(1, 12), probe=object()), "a probe needs whole sequences"),
    ],
)
def test_what_cannot_be_cut_is_said(ctx, said, monkeypatch):
    rank_of_four(monkeypatch, 0)
    with pytest.raises(UserError, match=said):
        ctx.cut()


def test_a_model_given_all_tokens_in_a_shard_says_which_are_its_own(monkeypatch):
    rank_of_four(monkeypatch, 1)
    model = build(Case("mixer", "attention").config())
    with pytest.raises(UserError, match=r"its own tokens, of shape \(2, 3\), not \(2, 12\)"):
        model(tokens(2, 12), Context.of(tokens(2, 12)).cut())


@pytest.mark.parametrize("knows", [True, False])
def test_only_a_mixer_that_knows_nothing_of_shards_is_given_the_whole_sequence(knows, monkeypatch):
    rank_of_four(monkeypatch, 1)
    layer, gathered = build(Case("mixer", "attention").config()).layers[0], []

    def whole(mixer, u, ctx):
        gathered.append(u.shape)
        return u, {}

    monkeypatch.setattr(zoo.context_parallel, "whole", whole)
    monkeypatch.setattr(layer.mixer, "forward", lambda u, ctx: (u, {}))
    monkeypatch.setattr(layer.mixer, "context_parallel", knows)
    norm = layer.mixer_norm.weight
    layer(torch.ones(1, 3, len(norm), dtype=norm.dtype), Context.of(tokens(1, 12)).cut())
    assert bool(gathered) == (not knows)


def test_a_convolution_longer_than_a_shard_is_refused(monkeypatch):
    rank_of_four(monkeypatch, 1)
    with pytest.raises(UserError, match="at least 3 tokens, not 2; use fewer than 4 ranks"):
        Context.of(tokens(1, 8)).cut().inputs_before(torch.zeros(1, 2, 5), 3)


@pytest.mark.parametrize("begin", [14, 15, 16, 17, 18])
def test_a_convolution_sees_the_tokens_before_a_shard_from_the_sequences_first_on(begin, monkeypatch):
    rank_of_four(monkeypatch, 1)  # tokens 18 to 35
    before = torch.arange(15.0, 18.0)[None, :, None]
    monkeypatch.setattr(zoo.context_parallel, "halo", lambda last, shard: before)
    cut = Context.of(tokens(1, 72), torch.tensor([0, begin, 72], dtype=torch.int32)).cut()
    seen = cut.inputs_before(torch.zeros(1, 18, 1), 3)
    assert seen.flatten().tolist() == [float(place) if place >= begin else 0.0 for place in (15, 16, 17)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "own", "read"), [(4, 2, [1], [0]), (8, 4, [2, 3], [1]), (6, 3, [2, 3], [1, 1])]
)
def test_a_rank_s_heads_meet_their_kv_heads_whatever_the_ranks_divide(
    heads, kv_heads, own, read, monkeypatch
):
    rank_of_four(monkeypatch, 1)
    swapped = {"to_heads": lambda x, shard: x.chunk(shard.size, 2)[shard.rank], "to_time": lambda o, _: o}
    for name, exchange in swapped.items():
        monkeypatch.setattr(zoo.context_parallel, name, exchange)
    q, k = (torch.arange(number).view(1, 1, number, 1) for number in (heads, kv_heads))
    met = []
    Context.of(tokens(1, 4)).cut().by_heads(lambda q, k, **_: met.append((q, k)) or q, q, k)
    assert [x.flatten().tolist() for x in met[0]] == [own, read]


@pytest.mark.parametrize("rank", range(4))
def test_pieces_are_all_queries_in_order_and_their_shares_sum_to_one(rank, monkeypatch):
    rank_of_four(monkeypatch, rank)
    cu = torch.tensor([0, 7, 47, 50, 54, 72], dtype=torch.int32)
    shard = Shard.of(Context.of(tokens(1, 72), cu))
    places = [i for piece in shard.pieces for i in range(18)[piece.queries]]
    assert places == list(range(18))
    for piece in shard.pieces:
        assert piece.keys.stop == shard.start + piece.queries.stop
        assert piece.keys.start in cu.tolist()
    total = 0.0
    for other in range(4):
        rank_of_four(monkeypatch, other)
        total += sum(piece.share for piece in Shard.of(shard.whole).pieces)
    assert total == pytest.approx(1.0, abs=1e-12)


def rank_of_four(monkeypatch, rank: int) -> None:
    """Let torch.distributed say that this is a rank of four; no exchange would come to an end."""
    for name, value in (("is_initialized", True), ("get_rank", rank), ("get_world_size", 4)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)
