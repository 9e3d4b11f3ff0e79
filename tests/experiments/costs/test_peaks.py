"""The peak that MFU is a share of: measured once per machine, never believed where a run was faster."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.program import Lab

from analysis import load_results
from analysis.caveats import caveats
from experiments.costs import peak_flops
from experiments.runs import read_metrics
from experiments.system import machine

CPU = torch.device("cpu")


def a_clock(monkeypatch, *seconds: float) -> list[float]:
    """Products seem to take so long, one after the other and again from the first; returns what was asked so far."""
    asked: list[float] = []
    durations = itertools.cycle(seconds)

    def perf_counter() -> float:
        # Every second reading ends a product.
        asked.append((asked[-1] if asked else 0.0) + (next(durations) if len(asked) % 2 else 0.0))
        return asked[-1]

    quick = SimpleNamespace(perf_counter=perf_counter, sleep=lambda _: None, strftime=lambda _: "now")
    monkeypatch.setattr(peak_flops, "time", quick)
    return asked


def kept(cache: Path) -> Path:
    (file,) = (cache / "peaks").iterdir()
    return file


@pytest.mark.slow
def test_on_a_machine_that_is_mostly_busy_the_products_that_were_not_disturbed_count(tmp_path, monkeypatch):
    slow, true = 30.0, 0.5
    rounds = [[slow] * len(peak_flops.SIZES) for _ in range(peak_flops.ROUNDS)]
    rounds[peak_flops.ROUNDS // 2][-1] = true
    a_clock(monkeypatch, *itertools.chain(*rounds))
    assert peak_flops.peak(CPU, tmp_path).flops == pytest.approx(2 * peak_flops.SIZES[-1] ** 3 / true)


@pytest.mark.slow
def test_it_is_measured_once_a_machine(tmp_path, monkeypatch):
    asked = a_clock(monkeypatch, 1.0)
    first = peak_flops.peak(CPU, tmp_path)
    readings = len(asked)
    assert readings == 2 * len(peak_flops.SIZES) * peak_flops.ROUNDS
    assert peak_flops.peak(CPU, tmp_path) == first
    assert len(asked) == readings, "the second run of this machine reads what the first one kept"
    facts = machine.describe(CPU)
    for fact in ("host_cpu", "cores", "threads", "capability"):
        other = {**facts, fact: "another"}
        monkeypatch.setattr(machine, "describe", lambda _, other=other: other)
        before = len(asked)
        peak_flops.peak(CPU, tmp_path)
        assert len(asked) > before, f"another {fact} is measured by itself"


@pytest.mark.slow
def test_a_rate_above_it_has_it_measured_again_and_the_higher_one_stays(tmp_path, monkeypatch):
    a_clock(monkeypatch, 4.0)
    busy = peak_flops.peak(CPU, tmp_path).flops
    a_clock(monkeypatch, 1.0)
    assert peak_flops.peak(CPU, tmp_path, above=0.9 * busy).flops == busy, "no reason to doubt it"
    assert peak_flops.peak(CPU, tmp_path, above=2 * busy).flops == pytest.approx(4 * busy)
    a_clock(monkeypatch, 100.0)
    assert peak_flops.peak(CPU, tmp_path, above=9 * busy).flops == pytest.approx(4 * busy)
    assert peak_flops.peak(CPU, tmp_path).flops == pytest.approx(4 * busy)


def test_a_higher_peak_that_another_process_found_meanwhile_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(peak_flops, "_measure", lambda _: 50.0)
    peak_flops.peak(CPU, tmp_path)

    def measured_beside_another(_: torch.device) -> float:
        found = json.loads(kept(tmp_path).read_text())
        kept(tmp_path).write_text(json.dumps({**found, "flops": 90.0}))
        return 70.0

    monkeypatch.setattr(peak_flops, "_measure", measured_beside_another)
    assert peak_flops.peak(CPU, tmp_path, above=60.0).flops == 70.0
    assert peak_flops.peak(CPU, tmp_path).flops == 90.0


def test_a_rate_above_the_peak_is_no_utilisation():
    assert peak_flops.utilisation(50.0, 200.0) == 0.25
    assert peak_flops.utilisation(200.0, 200.0) == 1.0
    assert peak_flops.utilisation(200.1, 200.0) is None


@pytest.mark.slow
def test_a_peak_that_a_busy_machine_made_too_low_is_told_and_shown_nowhere(lab: Lab, tmp_path, monkeypatch):
    """Every product seems to take an hour, so that any run is faster than the peak."""
    a_clock(monkeypatch, 3600.0)
    lab.cache = tmp_path / "cache"
    assert lab.here().status == 0
    summary = json.loads((lab.run_folder() / "summary.json").read_text())
    assert summary["mfu"] is None
    assert 0 < summary["mfu_peak_flops"] < 1e7
    rows = read_metrics(lab.run_folder() / "metrics.csv")
    assert {row["mfu"] for row in rows} == {""}
    results = load_results(lab.results)
    assert results.problems == []
    assert results.runs["mfu"].isna().all()
    (told,) = [text for text in caveats(results) if "above the peak" in text]
    assert "hypergraph" in told


def test_a_summary_says_what_ran_beside_it(finished: Lab):
    summary = json.loads((finished.run_folder() / "summary.json").read_text())
    assert summary["workers"] == 1
    assert summary["load"] >= 0
    assert summary["machine"]["capability"].startswith(torch.backends.cpu.get_cpu_capability())
    assert 0 < summary["mfu"] <= 1


def test_instructions_that_the_environment_takes_away_are_part_of_the_machine(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert machine.capability().endswith(", MKL_CBWR=COMPATIBLE")


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
    ],
)
def test_of_a_gpu_that_is_known_the_peak_is_that_of_its_data_sheet(monkeypatch, tmp_path, name, teraflops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = peak_flops.peak(torch.device("cuda"), tmp_path, above=1e18)
    assert found.flops == pytest.approx(teraflops * 1e12, rel=2e-3)
    assert "data sheet" in found.source
