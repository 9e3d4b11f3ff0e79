"""Results that were exported as parquet are read back as if the runs were there."""

import shutil

import pandas as pd
import pytest

from analysis import load_results
from analysis.loading.results import TABLES

PLACE = {"layer": 0, "part": "mixer", "block": "attention", "head": 1}


def write_tables(run, value: float) -> None:
    """measures and samples of a run, as job=probe writes them."""
    (run / "probes").mkdir()
    bucket = {"axis": "position", "start": 0.0, "end": 16.0}
    number = {"measure": "top_mass", "value": value, "count": 64}
    pd.DataFrame([{"step": 300, **PLACE, **bucket, **number}]).to_parquet(run / "probes" / "measures.parquet")
    said = {"prompt": "The ", "text": f"said {value}", "temperature": 0.8, "sample_seed": 0}
    pd.DataFrame([{**said, "tokens_per_second": 90.0}]).to_parquet(run / "probes" / "samples.parquet")


@pytest.fixture
def three(tmp_path, write_run):
    """Two seeds of one model, probed, and a run of another one, not probed."""
    place = tmp_path / "results" / "exp"
    for seed in (0, 1):
        write_tables(write_run(place, seed=seed), value=seed + 0.5)
    write_run(place, name="other", seed=0, recipe={"lr": 0.001}, model={"preset": "other"})
    return place


@pytest.mark.slow
def test_an_export_reads_back_without_the_runs(three, tmp_path):
    before = load_results(three)
    frames = {name: before.table(name) for name in TABLES}
    assert list(frames["measures"]["value"]) == [0.5, 1.5]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "maps.parquet").write_text("of an earlier export")
    before.to_parquet(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "measures.parquet",
        "metrics.parquet",
        "runs.parquet",
        "samples.parquet",
    ]
    shutil.rmtree(three)
    after = load_results(tmp_path / "out")
    pd.testing.assert_frame_equal(after.runs, before.runs)
    pd.testing.assert_frame_equal(after.metrics, before.metrics)
    for name, frame in frames.items():
        pd.testing.assert_frame_equal(after.table(name), frame)
    assert after.problems == []
    assert after.runs["folder"].str.startswith(str(three)).all()


@pytest.mark.slow
def test_exports_and_run_folders_mix_and_folders_win(three, tmp_path, write_run):
    load_results(three).to_parquet(tmp_path / "results" / "stored")
    (tmp_path / "results" / "stored" / "figures").mkdir()  # beside tables, nothing to complain of
    kept, gone, _ = (path for path in sorted(three.iterdir(), key=lambda p: not (p / "probes").exists()))
    pd.read_parquet(kept / "probes" / "measures.parquet").assign(value=9.0).to_parquet(
        kept / "probes" / "measures.parquet"
    )
    value = load_results(gone).table("measures")["value"].item()
    shutil.rmtree(gone)
    write_tables(write_run(tmp_path / "results" / "new", seed=7), value=7.5)
    both = load_results(tmp_path / "results")
    assert both.problems == []
    assert len(both.runs) == 4
    assert len(both.metrics) == 4 * 18
    measures = both.table("measures").set_index("run")["value"]
    assert measures[kept.name] == 9.0, "the folder is newer than its export"
    assert measures[gone.name] == value
    assert sorted(measures) == sorted([9.0, value, 7.5])
    listed = load_results([tmp_path / "results" / "stored", kept])
    assert len(listed.runs) == 3
