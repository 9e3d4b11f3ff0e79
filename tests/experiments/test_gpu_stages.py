"""The stages of job=gpu, rehearsed small on this machine: what a GPU would run is at least known to run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from program import Lab


@pytest.mark.slow
def test_every_stage_runs_once_and_is_skipped_afterwards(lab: Lab):
    words = ["job=gpu", "gpu.rehearse=true"]
    first = lab.run(*words)
    assert first.status == 0, first.err
    folder = lab.results / "gpu-rehearsal"
    assert set(json.loads((folder / "stages.json").read_text())) == {
        "tests",
        "attention",
        "latency",
        "dense",
        "sf",
        "publish",
    }
    latency = _rows(folder / "published" / "latency.csv")
    assert {row["model"] for row in latency} == {"transformer", "hypergraph"}
    assert all(float(row["milliseconds_median"]) > 0 for row in latency)
    scores = _rows(folder / "published" / "gpu_training.csv")
    assert [row["model"] for row in scores] == ["dense", "sf"]
    assert all(row["complete"] == "True" and row["training_set"] for row in scores)
    again = lab.run(*words)
    assert again.status == 0, again.err
    assert again.out.count("done before") == 6


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_that_everything_stays_unmeasured(lab: Lab):
    outcome = lab.here("job=gpu")
    assert outcome.status == 2
    assert "unmeasured" in outcome.err
