"""Every listed figure is drawn from real results; a file that cannot be imported takes only its own figures away."""

import logging
from pathlib import Path

import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis import figures, load_results
from analysis.comparing.tables import with_final_validation
from analysis.comparing.verdicts import families
from analysis.gallery import DRAWN, MOST, Selection, draw, draw_figures, listed, selection
from experiments.configuration.compose import presets_to_compare

NOT_IN_A_QUICKSTART = {"learning_rates", "layout_ranking", "crossover", "scaling"}
OF_TASKS = {
    *("task_attention", "task_accuracy", "task_curves", "task_difficulty", "task_positions", "task_state"),
}


def drawn(results, folder: Path) -> set[str]:
    """The names of the figures drawn; a figure that failed, rather than lacking data, is told apart."""
    shown = draw_figures(Selection(results, results), folder)
    assert [one.missing for one in shown if "failed" in one.missing] == []
    return {one.name for one in shown if not one.missing}


@pytest.mark.long
def test_the_quickstart_and_the_published_benches_support_every_figure_but_those_of_sweeps(eleven):
    assert set(pd.read_parquet(eleven.with_name("runs.parquet"))["preset"]) == set(presets_to_compare())
    names = {entry.name for entry in listed()}
    assert {
        path.stem for path in (eleven.parent / "figures").glob("*.png")
    } == names - NOT_IN_A_QUICKSTART - OF_TASKS


@pytest.mark.long
def test_stored_runs_support_the_rest(tmp_path, write_run, layout_changes, latency_csv, inference_csv):
    for layout in ("interlaced_sf", "late_full"):
        for rate in (1e-3, 3e-3):
            write_run(tmp_path / "exp", loss=3 + 100 * rate, recipe={"lr": rate}, **layout_changes(layout))
    for width in (32, 64, 128):
        size = {"model": {"d_model": width}, "parameters_non_embedding": 50 * width**2}
        write_run(tmp_path / "exp", "sized", option="sized", loss=3 - width / 200, **size)
    for bench in (latency_csv, inference_csv):
        bench.rename(tmp_path / "exp" / bench.name)
    benches = {"inference", "inference_batch_8"}
    assert drawn(load_results(tmp_path / "exp"), tmp_path / "figures") >= NOT_IN_A_QUICKSTART | benches


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ndef f(:\n", ": SyntaxError: invalid syntax (half_written.py, line 2)"),
        ("\nFIGURES = [Entry()]\n", ", line 2: NameError: name 'Entry' is not defined"),
    ],
)
def test_a_half_written_figure_is_named_and_left_out(tmp_path, monkeypatch, caplog, source, said):
    before = listed()
    place = figures.__name__.replace(".", "/")
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "half_written.py").write_text(source)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(folder)])
    with caplog.at_level(logging.WARNING):
        assert listed() == before
    assert caplog.messages == [f"left out: {place}/half_written.py{said}"]


def test_of_many_settings_figures_draw_the_baseline_and_the_best_models_at_their_best_rates():
    """A sweep of a thousand runs had legends of hundreds of names, and its report did not end."""
    rates = {"lr": [1e-3, 3e-3]}
    swept = [model(f"kda {n}", [3 + n / 100, 4 + n / 100], **rates) for n in range(MOST // 2)]
    results = pretended(model("transformer", [5.0, 5.1], **rates), *swept)
    selected = selection(results, families(with_final_validation(results), "test_loss"))
    wanted = {"transformer (lr=0.001)", *(f"kda {n} (lr=0.001)" for n in range(DRAWN - 1))}
    assert selected.labels == wanted == set(selected.chosen.runs["label"])
    assert len(selected.tried.runs) == 2 * DRAWN
    assert f"{DRAWN} of {MOST // 2 + 1} models" in selected.note
    assert set(draw("comparison", selected.tried, labels=selected.labels)[2]["label"]) == wanted
    few = pretended(*swept)
    assert selection(few, []) == Selection(few, few)
