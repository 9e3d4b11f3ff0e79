"""Numbers of claims that are counts, made again; intervals by hand."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.recorded import check, flat
from support.steady import pretended_machine

from experiments import evidence
from experiments.evidence import (
    counted_sizes,
    numbers,
    recurrent_mixers,
    residual_streams,
)
from experiments.system.paths import PUBLISHED
from zoo.residuals.hyper_connections import HyperResidual

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module", autouse=True)
def registered():
    evidence.measure_claims([], progress=False)


def test_every_file_of_claims_is_found_by_itself(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(evidence.importlib, "import_module", found.append)
    evidence.measure_claims([], progress=False)
    files = Path(evidence.__file__).parent.glob("*.py")
    assert sorted(found) == sorted(f"{evidence.__name__}.{x.stem}" for x in files if x.stem != "__init__")


@pytest.mark.slow
def test_counts_of_the_smallest_of_the_large_models_are_the_published_ones(monkeypatch):
    """FLOPs of OrthGSA and the plain transformer, bytes in serving and in training; the larger ones take longer."""
    monkeypatch.setattr(counted_sizes, "EXPECTED", counted_sizes.EXPECTED[:1])
    with (PUBLISHED / "claim_numbers.csv").open(encoding="utf-8") as file:
        published = {row["name"]: float(row["value"]) for row in csv.DictReader(file)}
    found = [*counted_sizes.ceilings_of_sparse_attention(), *counted_sizes.bytes_of_orthgsa()]
    assert len(found) == 4
    assert [number.value for number in found] == pytest.approx([published[n.name] for n in found], rel=1e-6)


@pytest.mark.parametrize("scheme", ["hc", "mhc", "ohc", "shc"])
def test_schemes_are_measured_past_their_warm_ups(scheme):
    made = residual_streams.model(scheme)
    schemes = [module for module in made.modules() if isinstance(module, HyperResidual)]
    assert {found.clock.factor.item() for found in schemes} == {1.0}


TIMED = {"time_of_recomputation", "time_of_maps", "overhead_of_streams"}
COUNTED_LARGE = {"ceilings_of_sparse_attention", "bytes_of_orthgsa", "ceilings_of_timelines"}
"""Of models of a billion parameters and more; the smallest has a test of its own."""


@pytest.mark.slow
def test_numbers_that_are_no_times_are_the_published_ones():
    """Made again with the draws that they were published with: each by its name, unit, bounds and, below them, value.

    Errors that are all rounding have bounds instead. Gradients that grow by powers of ten a layer (no cap) are another
    number with another processor's rounding, and are left out.
    """
    with (PUBLISHED / "claim_numbers.csv").open(encoding="utf-8") as file:
        published = {(int(row["claim"]), row["name"]): row for row in csv.DictReader(file)}
    work = [(claim, each) for claim, found in evidence._registered.items() for each in found]
    made = 0
    for claim, each in work:
        if each.__name__ in TIMED | COUNTED_LARGE:
            continue
        torch.manual_seed(0)
        for number in each():
            row = published[claim, number.name]
            if number.name.endswith("no cap"):
                continue
            low, value, high = (float(row[column]) for column in ("low", "value", "high"))
            assert (number.unit, number.timed) == (row["unit"], row["timed"] == "True"), number.name
            assert number.low <= number.value <= number.high, number.name
            assert (number.low, number.high) == pytest.approx((low, high), rel=1e-2), number.name
            if low > 0.0:
                assert number.value == pytest.approx(value, rel=1e-2), number.name
            made += 1
    assert made > 60


def test_numbers_are_measured_with_so_many_threads_and_say_what_else_the_machine_does(monkeypatch):
    """Threads of PyTorch, and the processes that wanted a core beside it."""
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(evidence.machine, "load", lambda: seen.append(torch.get_num_threads()) or 0.25)
    try:
        (row,) = evidence.measure_claims([19], threads=before + 1, progress=False)
    finally:
        torch.set_num_threads(before)
    assert seen == [before + 1]
    assert row["load"] == 0.25


def test_intervals():
    def lines() -> Iterator[str]:
        draws = torch.arange(101.0)
        for number in (
            numbers.exact("a", 3),
            numbers.bounded("b", torch.tensor(1e-9), 1e-6, "u"),
            numbers.near("c", 2.0),
            numbers.near("d", 2.0, "u", 0.1),
            numbers.sampled("e", draws, "u"),
            numbers.paired("f", [2.0, 4.0, 9.0], [1.0, 2.0, 3.0]),
            numbers.milliseconds("g", [5.0, 1.0, 3.0]),
        ):
            yield "; ".join(flat(number))
        own, peer = torch.full((5,), 2.0), torch.full((5,), 4.0)
        yield "; ".join(flat(recurrent_mixers.mean_ratio("h", own, peer)))
        with pretended_machine():
            rows = evidence.measure_claims([19], progress=False)
        yield f"{[sorted(row) for row in rows]} {[(row['claim'], row['name'], row['value']) for row in rows]}"
        yield f"{numbers.ROUNDING}"

    check(RECORDED / "intervals.txt", lines())


def test_times_in_turns_are_of_this_processs_own_processor_time(monkeypatch):
    """Other work on the machine does not count."""
    clock = iter([1.0, 1.25, 2.0, 2.5])
    monkeypatch.setattr(numbers.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(
        numbers.timing,
        "interleaved",
        lambda calls, repeats, device, clock: {
            name: [clock(call, device)] * repeats for name, call in calls.items()
        },
    )
    ran: list[str] = []
    calls = {name: lambda name=name: ran.append(name) for name in ("a", "b")}
    assert numbers.in_turns(calls, 2) == {"a": [250.0] * 2, "b": [500.0] * 2}
    assert ran == ["a", "b"]
