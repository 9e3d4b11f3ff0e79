"""Rows of probes: summaries and buckets are told apart, and figures name the step whose weights they show."""

import pandas as pd
import pytest
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.caveats import caveats
from analysis.gallery import draw
from analysis.loading.columns import RUN_COLUMNS
from analysis.loading.probes import SUMMARY, probe_measures, probed_steps, select_axis, steps_text

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


@pytest.fixture
def probed_at(tmp_path, write_run):
    """Results of one model a step, each probed at it."""

    def make(*steps: int):
        for seed, step in enumerate(steps):
            run = write_run(tmp_path / "exp", f"model{seed}", seed, model={"residual": f"r{seed}"})
            rows = [
                measure("stream_gradient", 1.0 + layer, step=step, layer=layer, part=part)
                for layer in range(5)
                for part in (("mixer", "channel") if layer < 4 else ("head",))
            ]
            rows += [measure("parameter_gradient", 1.0, step=step, layer=0)]
            write_table(run, "measures", rows)
        return load_results(tmp_path / "exp")

    return make


def heading(figure) -> str:
    return "" if figure._suptitle is None else figure._suptitle.get_text()


@pytest.mark.slow
def test_one_step_is_named_in_the_figure_and_is_no_notice(probed_at):
    results = probed_at(1000, 1000)
    figure, _, _ = draw("gradient_depth", results)
    assert heading(figure) == "weights of step 1,000"
    assert not any("different steps" in text for text in caveats(results))


@pytest.mark.slow
def test_mixed_steps_are_named_with_their_models(probed_at):
    results = probed_at(250, 1000, 1000)
    figure, _, _ = draw("gradient_depth", results)
    assert heading(figure) == "weights of different steps: 250 (1 run) and 1,000 (2 runs)"
    (told,) = [text for text in caveats(results) if "different steps" in text]
    assert "250 of model0 and 1,000 of model1 and model2" in told
    assert "probe.at=last" in told


def test_a_figure_names_the_steps_of_its_own_runs_only(probed_at):
    steps = probed_steps(probed_at(250, 1000))
    (experiment, run) = steps.index[steps == 250][0]
    assert experiment == "exp"
    assert steps_text(steps[steps.index.isin([run], level="run")]) == "weights of step 250"


def test_other_figures_name_no_step(probed_at):
    figure, caption, _ = draw("loss_against_tokens", probed_at(250, 1000))
    assert heading(figure) == ""
    assert "eights of" not in caption


def test_runs_that_nobody_looked_into_have_none(tmp_path, write_run):
    write_run(tmp_path / "exp")
    assert steps_text(probed_steps(load_results(tmp_path / "exp"))) == ""
