"""Exported tables are read back as if the runs were there; tables of job=bench; labels leave out what all share."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis import load_results
from analysis.files import NoData
from analysis.loading.columns import SETTING_COLUMNS, labels, short_names
from analysis.loading.results import TABLES
from analysis.loading.tables import read_bench

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


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["kda layerscale relu2", "nsa layerscale relu2"], ["kda", "nsa"]),
        (["kda relu2", "kda hc relu2", "nsa relu2"], ["kda", "kda hc", "nsa"]),
        (["kda relu2", "nsa"], ["kda relu2", "nsa"]),
        (["transformer hc", "transformer mhc"], ["transformer hc", "transformer mhc"]),
        (["kda relu2", "kda relu2"], ["kda relu2", "kda relu2"]),
        (["kda relu2", ""], ["kda relu2", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_words_that_all_names_share_are_left_out(names, short):
    assert list(short_names(pd.Series(names))) == short


def test_labels_that_would_become_equal_stay():
    names = ["kda relu2", "kda relu2 relu2"]
    assert list(short_names(pd.Series(names))) == names


def runs(**columns: list) -> pd.DataFrame:
    """Two runs of one name and different settings, alike in all columns but these."""
    same = {column: [None, None] for column in [*SETTING_COLUMNS, "task"]}
    return pd.DataFrame({**same, "name": ["kda", "kda"], "setting": ["1" * 12, "2" * 12], **columns})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"test_tokens": [512, 1024]}, ["kda (test_tokens=512)", "kda (test_tokens=1024)"]),
        ({"test_stride": [64, 32]}, ["kda (test_stride=64)", "kda (test_stride=32)"]),
        ({"depth": [2, 4], "test_tokens": [512, 1024]}, ["kda (depth=2)", "kda (depth=4)"]),
        ({}, ["kda (#111111)", "kda (#222222)"]),
    ],
)
def test_what_was_scored_tells_models_apart_only_where_nothing_else_does(columns, said):
    """`evaluate.windows` is a part of a run's identity; its label was a hash."""
    assert list(labels(runs(**columns), "setting")) == said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (b"a,b\n1,2\n3,4,5,6\n", "cannot be read"),
        (b"a\n\xff\xfe\n", "cannot be read"),
        (b"b\n1\n", "has no column a"),
    ],
)
def test_a_damaged_table_is_no_data(tmp_path: Path, content: bytes | None, reason: str):
    file = tmp_path / "steps.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoData, match=f"steps.csv {reason}"):
        read_bench(file, ["a"], ["a"])


def test_what_is_no_number_is_missing(tmp_path: Path):
    (tmp_path / "steps.csv").write_text("a,b\n1,x\nfast,y\n")
    rows = read_bench(tmp_path / "steps.csv", ["a"], ["a"])
    assert rows["a"].isna().tolist() == [False, True]
    assert rows["b"].tolist() == ["x", "y"]
