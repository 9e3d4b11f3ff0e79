"""Summary rows and bucket rows of a measure are told apart, and columns explain themselves."""

import pandas as pd
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.loading.columns import RUN_COLUMNS
from analysis.loading.probes import SUMMARY, probe_measures, select_axis

ROWS = pd.DataFrame(
    {
        "run": ["a", "a", "a", None],
        "measure": ["mass", "mass", "rank", None],
        "axis": ["", "position", "rank", None],
        "value": [1.0, 2.0, 3.0, None],
    }
)


def test_a_measure_has_a_summary_row_and_bucket_rows():
    assert select_axis(ROWS, SUMMARY)["value"].dropna().tolist() == [1.0]
    assert select_axis(ROWS, "position")["value"].dropna().tolist() == [2.0]
    both = select_axis(ROWS, {"mass": "position", "rank": "rank"})
    assert both["value"].dropna().tolist() == [2.0, 3.0]


def test_models_without_data_stay():
    for axis in (SUMMARY, "position", {"mass": "rank"}):
        assert select_axis(ROWS, axis)["run"].isna().sum() == 1


def test_an_empty_axis_read_from_a_csv_file_is_a_summary():
    rows = ROWS.assign(axis=ROWS["axis"].replace("", None))
    assert select_axis(rows, SUMMARY)["value"].dropna().tolist() == [1.0]


def test_of_a_setting_and_seed_in_two_experiments_one_run_counts_at_its_last_step(tmp_path, write_run):
    """A mean over both would be one of two copies, and a step before the last one is of other weights."""
    for experiment, value in (("a", 1.0), ("b", 2.0)):
        run = write_run(tmp_path / experiment, run=experiment)
        write_table(run, "measures", [measure("sink", 9.0, step=100), measure("sink", value, step=300)])
    rows = probe_measures(load_results(tmp_path), ("sink",))
    assert rows[["run", "value"]].to_numpy().tolist() == [["a", 1.0]]


def test_a_table_that_names_no_step_is_read_whole(tmp_path, write_run):
    run = write_run(tmp_path / "exp")
    write_table(run, "measures", [measure("sink", value, step=None) for value in (1.0, 2.0)])
    assert probe_measures(load_results(tmp_path / "exp"), ("sink",))["value"].tolist() == [1.0, 2.0]


def test_results_explain_their_columns(tmp_path, write_run):
    write_run(tmp_path / "exp")
    results = load_results(tmp_path / "exp")
    assert list(results.columns("runs").index) == [column.name for column in RUN_COLUMNS]
    assert results.columns("runs").loc["seconds", "unit"] == "s"
    assert list(results.columns("measures").index) == list(results.table("measures").columns)
    assert "position" in results.columns("measures").loc["axis", "meaning"]
