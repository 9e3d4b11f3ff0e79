"""suite=kernels: every case is a call that works, is counted without arithmetic, and is measured once."""

import csv
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.program import Lab
from support.steady import pretended_machine

from experiments.bench import memory_traffic, result_table, timing
from experiments.bench.cases import CASES, HEAD, HEADS, SELECTED, Call, InputFactory
from experiments.bench.suites import kernels as suite
from experiments.configuration.schema import BenchConfig, Config
from kernels.triton_common.tiles import Work

CPU, META = torch.device("cpu"), torch.device("meta")
LENGTH = 40
# Many heads or many programs: a second each.
HEAVY = {
    *("delta_rule, KDA", "delta_rule, a gate a head", "nsa_attention, groups of 16", "mesa", "mesa, a step"),
    *("mesa, heads of 256", "mesa, heads of 256, a step"),
}


def cases() -> list:
    return [
        pytest.param(x, marks=[pytest.mark.slow] if name in HEAVY else [], id=name)
        for name, x in CASES.items()
    ]


@pytest.mark.parametrize("case", cases())
def test_every_case_is_a_call_that_works(case):
    calls = case.calls(case.length or LENGTH, 2 * (case.length or LENGTH), CPU, torch.float32)
    leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
    form = lambda: [call.run("torch") for call in calls]  # noqa: E731
    timing.forward(form, leaves)
    if case.backward:
        timing.forward_backward(form, leaves)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shapes_alone_are_those_of_the_tensors(case):
    length = case.length or 8
    real, dry = (case.calls(length, length, device, torch.float32) for device in (CPU, META))
    for a, b in zip(real, dry, strict=True):
        assert [(x.shape, x.dtype) for x in a.tensors()] == [(x.shape, x.dtype) for x in b.tensors()]
        assert all(x.is_meta for x in b.tensors())


KINDS = {
    "normal": lambda x: x.isfinite(),
    "weight": lambda x: x.isfinite(),
    "unit": lambda x: (x.norm(dim=-1) - 1).abs() < 1e-5,
    "log_gate": lambda x: x < 0,
    "gate": lambda x: (x > 0) & (x < 1),
    "ones": lambda x: x == 1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_inputs_are_of_their_range_and_learn_and_shapes_alone_hold_nothing(kind):
    real, dry = (getattr(InputFactory(2, 5, device, torch.float32), kind)(3, 4) for device in (CPU, META))
    assert KINDS[kind](real.detach()).all()
    assert (real.requires_grad, dry.requires_grad) == (True, False)
    assert real.shape == dry.shape


def test_causal_indices_are_different_tokens_of_the_past():
    torch.manual_seed(0)
    indices = InputFactory(2, 50, CPU, torch.float32).causal_indices(7)
    for t in range(50):
        for row in indices[:, t].tolist():
            used = [s for s in row if s >= 0]
            assert len(set(used)) == len(used) == min(7, t + 1)
            assert max(used) <= t


@pytest.mark.slow
def test_dry_counts_every_kernel_and_measures_nothing(lab: Lab):
    with mock.patch.object(timing, "interleaved", side_effect=AssertionError):
        outcome = lab.here("job=bench", "suite=kernels", "device=cpu", "dry=true", "bench.lengths=[8192]")
    assert outcome.status == 0, outcome.err
    for case in CASES.values():
        assert f"\n{case.name} " in outcome.out
    # Read and written once each, with the weight: 16 x 8192 tokens of 768 channels in two bytes.
    size = 16 * 8192 * 768 * 2
    (line,) = (x for x in outcome.out.splitlines() if x.startswith("short_conv  ") and " forward " in x)
    megabytes, _, microseconds, bound = line.split()[-4:]
    assert bound == "memory"
    assert float(megabytes) == pytest.approx(2 * size / 1e6, rel=1e-3)
    assert float(microseconds) == pytest.approx(1e6 * 2 * size / 4.8e12, rel=1e-3)
    assert not list(lab.folder.rglob("*.csv"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["suite=latency", "dry=true"], "suite=kernels"),
        (["suite=kernels", "dry=true", "bench.cases=[mesi]"], "unknown bench.cases 'mesi'"),
        (["suite=recompute", "bench.cases=[mesa]"], "not with recompute"),
        (["suite=recompute", "trainer.recompute_block=0"], "trainer.recompute_block=0 must be at least 1"),
        (["suite=models", "trainer.recompute=ful"], "did you mean 'full'?"),
        (["suite=models", "model.backend=tritn"], "did you mean 'triton'?"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(lab: Lab, words, says):
    assert says in lab.refused("job=bench", *words)
    assert not list(lab.folder.rglob("*.csv"))


def test_a_roofline_is_the_longer_of_memory_and_arithmetic():
    peaks = memory_traffic.PEAKS["H200"]
    half, single = (
        Call("short_conv", (torch.empty(1, dtype=t),), {}) for t in (torch.bfloat16, torch.float32)
    )
    assert memory_traffic.milliseconds(Work("a", "forward", 0, 4.8e9), half, peaks) == pytest.approx(1)
    assert memory_traffic.milliseconds(Work("a", "forward", 989e9, 1), half, peaks) == pytest.approx(1)
    assert memory_traffic.milliseconds(Work("a", "forward", 67e9, 1), single, peaks) == pytest.approx(1)
    call = mock.Mock(work=lambda: [Work("a", "forward", 3, 5), Work("b", "backward", 10, 20)])
    assert memory_traffic.totals([call], "forward", None) == memory_traffic.Totals(3, 5, None)
    assert memory_traffic.totals([call], "forward+backward", None) == memory_traffic.Totals(13, 25, None)
    assert memory_traffic.totals([call, mock.Mock(work=lambda: None)], "forward", None) is None


@pytest.mark.slow
def test_a_share_of_the_roofline_is_the_least_time_over_the_time_taken(tmp_path, monkeypatch):
    """Peaks of a GPU are given, because a CPU has none in the table."""
    monkeypatch.setattr(memory_traffic, "peaks_of", lambda device: memory_traffic.PEAKS["H200"])
    rows = [row for row in measured(tmp_path, "hyper_pre") if row["milliseconds_median"]]
    assert rows
    for row in rows:
        share = float(row["roofline_milliseconds"]) / float(row["milliseconds_median"])
        assert float(row["roofline"]) == pytest.approx(share, rel=1e-4)


def flops(name: str, length: int, tokens: int) -> float:
    return memory_traffic.totals(
        CASES[name].calls(length, tokens, META, torch.bfloat16), "forward", None
    ).flops


@pytest.mark.parametrize("length", [512, SELECTED, 8192])
def test_places_of_a_list_that_hold_no_key_are_not_counted(length):
    """As many pairs as the drawn lists have, which are twice as few as places where every list is short."""
    pairs = sum(min(t + 1, SELECTED) for t in range(length))
    assert flops("sparse_attention", length, length) == 2 * pairs * HEADS * 2 * HEAD
    assert flops("indexer_kl", length, length) == 2 * pairs * (HEADS * HEAD + 3 * 4 * HEAD)


def config(folder: Path, *cases: str, **bench) -> Config:
    options = {"lengths": [16, 32], "tokens": 32, "repeats": 2, "out": str(folder), **bench}
    return Config(job="bench", suite="kernels", device="cpu", bench=BenchConfig(cases=list(cases), **options))


def measured(*words, **bench) -> list[dict[str, str]]:
    """The table that a run leaves."""
    made = config(*words, **bench)
    suite.run(made)
    return list(csv.DictReader((Path(made.bench.out) / "kernels.csv").read_text().splitlines()))


@pytest.mark.long
def test_the_suite_measures_what_can_serve_and_names_what_cannot(tmp_path):
    rows = measured(tmp_path, "short_conv", "sparse_attention")
    assert {(row["model"], row["tokens"], row["batch"]) for row in rows} >= {
        ("sparse_attention", "16", "2"),
        ("sparse_attention", "32", "1"),
        ("short_conv, a step", "1", "32"),
    }
    timed = [row for row in rows if not row["note"]]
    assert all(float(row["milliseconds_median"]) > 0 for row in timed)
    assert {row["backend"] for row in timed} == {"torch", "sdpa_flash", "copy"}
    assert {row["mode"] for row in timed} == {"forward", "forward+backward"}
    sparse = [row for row in timed if row["model"].startswith("sparse") and "gate" not in row["model"]]
    assert {row["peer"] for row in sparse} == {"sdpa_flash"}
    assert {float(row["ratio"]) for row in sparse if row["backend"] == "sdpa_flash"} == {1.0}
    # On a CPU no Triton form has a time; every case says why.
    noted = {row["model"] for row in rows if row["backend"] == "triton" and row["note"]}
    assert noted == {row["model"] for row in rows}


@pytest.mark.slow
def test_rows_that_are_there_are_not_measured_again(tmp_path):
    suite.run(config(tmp_path, "hyper_pre", budget_s=0.0))  # no time for anything
    assert not suite.finished(config(tmp_path, "hyper_pre"))
    first = measured(tmp_path, "hyper_pre")
    assert {row["tokens"] for row in first} == {"16", "32"}
    assert suite.finished(config(tmp_path, "hyper_pre"))
    assert measured(tmp_path, "hyper_pre") == first
    more = measured(tmp_path, "hyper_p")
    assert more[: len(first)] == first
    assert {row["model"] for row in more} == {"hyper_pre", "hyper_post"}


@pytest.mark.parametrize("fact", ["device", "machine", "torch", "commit"])
def test_rows_count_on_one_machine_with_one_version_of_code_and_torch(tmp_path, fact):
    made = config(tmp_path)
    with pretended_machine():
        here = {"model": "short_conv", **result_table.machine_facts(CPU)}
        result_table.save([here, {**here, fact: "another"}], result_table.table_path(made))
        (row,) = result_table.ResumableTable(made, CPU).rows
    assert row[fact] == here[fact]


@pytest.mark.slow
def test_what_does_not_fit_is_a_row(tmp_path):
    with mock.patch("kernels.ops.hyper_pre.OPERATION.choose", side_effect=torch.OutOfMemoryError):
        assert "out of memory" in {row["note"] for row in measured(tmp_path, "hyper_pre")}


@pytest.mark.slow
def test_what_breaks_the_gpu_is_a_row_and_ends_the_program(tmp_path):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    broken = mock.patch("kernels.ops.hyper_pre.OPERATION.choose", side_effect=error)
    with broken, pytest.raises(result_table.Crashed, match="hyper_pre, torch: CUDA error"):
        suite.run(config(tmp_path, "hyper_pre"))
    assert "CUDA error" in (tmp_path / "kernels.csv").read_text()
    assert {row["tokens"] for row in measured(tmp_path, "hyper_pre")} == {"16", "32"}  # it goes on after it
