"""Several processes train as one does that accumulates their micro-batches, bit for bit where sums have one order.

Two addends commute, so that FSDP2 is equal bit for bit for two processes with a micro-batch each; DDP adds in the
order of micro-batches, for any number. Where a process has several, it adds its own first: equal to rounding.
"""

from pathlib import Path

import pytest
import torch
from support.parallel_runs import configured, in_processes, models, train
from support.shared import once

pytestmark = pytest.mark.xdist_group("equal to one process")  # or every test process trains the models
FSDP = {"strategy": "fsdp", "devices": 2}
DDP = {"strategy": "ddp", "devices": 2}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """name of a model -> its training in one process."""
    found = {}

    def training(model: str, **options) -> dict:
        key = (model, *sorted(options.items()))
        if key not in found:
            place = tmp_path_factory.mktemp("one")
            also = {name: options.pop(name) for name in ("unequal",) if name in options}
            found[key] = train(configured(models()[model], **options), place, **also)
        return found[key]

    return training


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict:
    """All trainings in two processes, which are started once."""
    cases = {f"ddp {name}": {"model": name, **DDP} for name in models()}
    cases |= {f"fsdp {name}": {"model": name, **FSDP} for name in models()}
    for mode in ("full", "selective"):
        for reshard in (True, False):
            name = f"fsdp orthgsa {mode} {reshard}"
            cases[name] = {"model": "orthgsa", **FSDP, "recompute": mode, "reshard": reshard}
        cases[f"ddp orthgsa {mode}"] = {"model": "orthgsa", **DDP, "recompute": mode}
    for strategy in (DDP, FSDP):
        for name in models():
            cases[f"{strategy['strategy']} unequal {name}"] = {"model": name, **strategy, "unequal": True}
    cases["ddp shared"] = {"model": "kda", **DDP, "accumulate": 4}
    cases["fsdp shared"] = {"model": "kda", **FSDP, "accumulate": 4}
    return once(tmp_path_factory, "two", lambda: in_processes(cases, tmp_path_factory.mktemp("two")))


def assert_equal(a: dict, b: dict) -> None:
    assert a["losses"] == b["losses"]
    assert a["norms"] == b["norms"]
    assert a["weights"].keys() == b["weights"].keys()
    assert [name for name, x in a["weights"].items() if not torch.equal(x, b["weights"][name])] == []


def assert_close(a: dict, b: dict, limit: float = 1e-6) -> None:
    """Weights and losses of twelve steps, in which rounding has not grown yet."""
    torch.testing.assert_close(torch.tensor(a["losses"]), torch.tensor(b["losses"]), rtol=limit, atol=limit)
    assert a["weights"].keys() == b["weights"].keys()
    for name, x in a["weights"].items():
        torch.testing.assert_close(
            x, b["weights"][name], rtol=0, atol=limit, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.long
@pytest.mark.parametrize("name", models())
def test_replicas_are_equal_bit_for_bit(name: str, one, two: dict):
    assert_equal(two[f"ddp {name}"], one(name))


@pytest.mark.long
@pytest.mark.parametrize("name", models())
def test_shards_are_equal_bit_for_bit(name: str, one, two: dict):
    assert_equal(two[f"fsdp {name}"], one(name))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", models())
def test_unequal_micro_batches_are_equal_bit_for_bit(name: str, strategy: str, one, two: dict):
    """A step is a mean over the answers and sequences of all processes, however many each of them has."""
    assert_equal(two[f"{strategy} unequal {name}"], one(name, unequal=True))


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one_over_unequal_micro_batches(one, tmp_path: Path):
    """Losses, gradient norms and weights of three steps, with auxiliary losses and none, in both strategies."""
    options = {"unequal": True, "max_steps": 3}
    cases = {
        f"{strategy['strategy']} {name}": {"model": name, **strategy, **options}
        for strategy in (DDP, FSDP)
        for name in ("orthgsa", "hypergraph", "moe")
    }
    for case, found in in_processes(cases, tmp_path).items():
        assert_equal(found, one(case.split()[1], **options))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputing_changes_nothing(mode: str, one, two: dict):
    assert_equal(two[f"ddp orthgsa {mode}"], one("orthgsa"))
    for reshard in (True, False):
        assert_equal(two[f"fsdp orthgsa {mode} {reshard}"], two["fsdp orthgsa"])


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_several_micro_batches_for_each(strategy: str, one, two: dict):
    """Four micro-batches are summed in pairs, in one process one after the other."""
    assert_close(two[f"{strategy} shared"], one("kda", accumulate=4))


@pytest.mark.long
def test_three_processes_sum_in_the_order_of_one(one, tmp_path: Path):
    cases = {"three": {"model": "hypergraph", "strategy": "ddp", "devices": 3, "accumulate": 3}}
    assert_equal(in_processes(cases, tmp_path, processes=3)["three"], one("hypergraph", accumulate=3))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_of_one_process_that_is_not_finite_ends_all(strategy: str, tmp_path: Path):
    """Micro-batch 7, of the fourth step, is the second process's."""
    case = {"model": "kda", "strategy": strategy, "devices": 2, "bad": 7}
    found = in_processes({"case": case}, tmp_path)["case"]
    assert found == train(configured(models()["kda"]), tmp_path, bad=7)
    assert found["step"] == 3
    assert "'layers.0'" in found["error"]
