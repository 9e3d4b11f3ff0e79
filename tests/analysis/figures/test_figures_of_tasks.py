"""Figures of synthetic tasks: what is drawn is what the runs answered, a panel a task, with the level of chance."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from support.figure_reading import line
from support.task_runs import write_study, write_task_run

from analysis import load_results
from analysis.figures import task_accuracy, task_curves, task_difficulty, task_positions, task_state
from analysis.gallery import draw
from analysis.plotting.axes import chance_text, task_panels


@pytest.fixture(scope="module")
def study(tmp_path_factory, write_run):
    return load_results(write_study(write_run, tmp_path_factory.mktemp("tasks") / "exp"))


def by_title(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.axison}


def level_of_chance(axes):
    return line(axes, "_chance").get_ydata()[0]


@pytest.mark.slow
def test_curves_are_means_over_seeds_of_one_task(study):
    figure = task_curves.draw(task_curves.table(study))
    panels = by_title(figure)
    assert list(panels) == ["mqar", "parity"]
    for task, axes in panels.items():
        rows = study.metrics[
            (study.metrics["name"] == f"kda {task}") & (study.metrics["split"] == "validation")
        ]
        np.testing.assert_allclose(
            line(axes, "kda").get_ydata(), rows.groupby("step")["accuracy"].mean(), rtol=1e-6
        )
        assert axes.get_xlabel() == "training steps"
    assert (level_of_chance(panels["mqar"]), level_of_chance(panels["parity"])) == (1 / 32, 0.5)
    assert line(panels["mqar"], "_copying").get_ydata()[0] == 0.25


@pytest.mark.slow
def test_difficulty_is_what_the_task_says_and_of_the_test_split(study):
    table = task_difficulty.table(study)
    axes = by_title(task_difficulty.draw(table))["parity"]
    assert axes.get_xlabel() == "bits so far"
    answers = study.table("answers")
    rows = answers[
        (answers["name"] == "kda parity") & (answers["axis"] == "difficulty") & (answers["split"] == "test")
    ]
    drawn = line(axes, "kda")
    first = rows[rows["value"] <= 4]  # eleven difficulties in ten buckets: two share one
    shares = rows.groupby("value")[["right", "answers"]].sum()
    assert drawn.get_ydata()[0] == pytest.approx(first["right"].sum() / first["answers"].sum(), abs=0.01)
    assert drawn.get_ydata()[-1] == pytest.approx((shares["right"] / shares["answers"]).iloc[-1], abs=0.01)
    assert table.groupby("run")["answers"].sum().eq(1100).all()
    assert (
        table.groupby("run")["right"].sum().sum()
        == answers.query("axis == 'difficulty' and split == 'test'")["right"].sum()
    )


@pytest.mark.slow
def test_losses_along_the_sequence_are_sums_of_buckets_that_double(tmp_path, write_run):
    folder = write_task_run(write_run, tmp_path / "exp", "kda", "parity")
    rows = ["test,position,0,10,9,4", "test,position,15,30,3,16", "test,position,16,10,1,3"]
    rows += ["test,position,64,10,9,1", "test,position,127,30,3,1", "validation,position,2,10,1,1"]
    (folder / "answers.csv").write_text("split,axis,value,answers,right,nats\n" + "\n".join(rows))
    table = task_positions.table(load_results(tmp_path / "exp"))
    assert table[["start", "end", "answers"]].values.tolist() == [[0, 16, 40], [16, 32, 10], [64, 128, 40]]
    np.testing.assert_allclose(table["position"], [(10 * 1 + 30 * 16) / 40, 17, (10 * 65 + 30 * 128) / 40])
    (axes,) = task_positions.draw(table).axes
    np.testing.assert_allclose(line(axes, "kda").get_ydata(), [0.5, 0.3, 0.05])
    assert level_of_chance(axes) == pytest.approx(np.log(2))
    assert axes.get_ylabel() == "loss (nats/answer)"


@pytest.mark.slow
def test_state_is_that_of_the_tasks_length_and_sizes_of_a_model_are_one_line(tmp_path, write_run):
    for width, accuracy in ((32, 0.5), (64, 0.9)):
        for seed in (0, 1):
            model = {"d_model": width}
            write_task_run(
                write_run, tmp_path / "exp", "kda", "mqar", seed, accuracy, size=100 * width, model=model
            )
    write_task_run(write_run, tmp_path / "exp", "mesanet", "mqar", accuracy=0.2, size=0)
    table = task_state.table(load_results(tmp_path / "exp"))
    (axes,) = task_state.draw(table).axes
    drawn = line(axes, "kda")
    assert (list(drawn.get_xdata()), list(drawn.get_ydata())) == ([3200, 6400], [0.5, 0.9])
    assert "Without a state, and not drawn: mesanet." in task_state.caption(table)


@pytest.mark.slow
def test_the_table_in_colours_marks_those_who_may_be_first(study):
    figure = task_accuracy.draw(task_accuracy.table(study))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        "mqar\nchance 0.031\ncopying 0.25",
        "parity\nchance 0.5\nmemory 0.55",
    ]
    models = [text.get_text() for text in axes.get_yticklabels()]
    written = {
        (models[round(text.get_position()[1])], round(text.get_position()[0])): (
            text.get_text(),
            text.get_weight(),
        )
        for text in axes.texts
        if "±" not in text.get_text()
    }
    assert written["transformer", 0] == ("0.970", "bold")
    assert written["kda", 0] == ("0.965", "bold")
    assert written["mesanet", 0] == ("0.700", "normal")
    assert written["kda", 1] == ("0.990", "bold")
    assert written["transformer", 1] == ("0.600", "normal")
    shades = axes.images[0].get_array()
    assert shades[models.index("transformer"), 1] == pytest.approx(
        1 / 9
    )  # of what is left above a memory's 0.55
    assert shades[models.index("mesanet"), 0] == pytest.approx(0.6)  # of what is left above copying


def test_levels_are_explained_with_their_numbers():
    """The caption speaks of copying only where its line is drawn."""
    table = pd.DataFrame({"task": ["mqar", "parity"], "chance": [1 / 32, 0.5]})
    alone = chance_text(table)
    assert alone.endswith("(mqar 0.0312 and parity 0.5).")
    assert chance_text(table.assign(shortcut=[None, 0.5])) == alone
    told = chance_text(table.assign(shortcut=[0.381, 0.503]))
    assert told.startswith(alone)
    assert told.removeprefix(alone) == (
        " Dotted: what copying from a fixed place, distance or order gets, no key read, where that is more "
        "(mqar 0.381)."
    )
    told = chance_text(table.assign(memorised=[0.035, 0.75]))
    assert told.removeprefix(alone) == (
        " Dashed and dotted: what a memory of as much training gets, no rule known, where that is more (parity 0.75)."
    )


@pytest.mark.parametrize("shortcut", [{"shortcut": [0.381, 0.503]}, {"shortcut": [None, None]}, {}])
def test_copying_is_a_dotted_line_where_it_gets_more_than_chance(shortcut: dict):
    table = pd.DataFrame({"task": ["mqar", "parity"], "chance": [1 / 32, 0.5], **shortcut})
    _, places = task_panels(table, 0.2)
    dotted = {
        task: (drawn.get_linestyle(), list(drawn.get_ydata()))
        for task, axes in places.items()
        for drawn in axes.lines
        if drawn.get_label() == "_copying"
    }
    assert dotted == ({"mqar": (":", [0.381, 0.381])} if shortcut.get("shortcut", [None])[0] else {})


@pytest.mark.slow
def test_attention_to_the_answer_is_the_best_head_of_each_layer(tmp_path, write_run):
    for seed in (0, 1):
        run = write_task_run(write_run, tmp_path / "exp", "transformer", "mqar", seed)
        heads = [
            (layer, head, 0.1 + 0.4 * layer + 0.2 * head + 0.02 * seed) for layer in (0, 1) for head in (0, 1)
        ]
        columns = [
            *("step", "layer", "part", "block", "head", "axis", "start", "end", "measure", "value", "count"),
        ]
        rows = [
            (300, layer, "mixer", "attention", head, "", None, None, name, value, 8)
            for layer, head, mass in heads
            for name, value in (("answer_mass", mass), ("answer_uniform", 0.04 + 0.02 * seed))
        ]
        (run / "probes").mkdir()
        pd.DataFrame(rows, columns=columns).to_parquet(run / "probes" / "measures.parquet")
    figure, caption, _ = draw("task_attention", load_results(tmp_path / "exp"))
    (axes,) = figure.axes
    np.testing.assert_allclose(line(axes, "transformer").get_ydata(), [0.31, 0.71])
    assert level_of_chance(axes) == pytest.approx(0.05)
    assert "transformer on mqar 0.72 (layer 1, head 1, seed 1)" in caption


def test_a_point_of_several_difficulties_stands_at_their_mean_over_answers():
    """Eleven in ten points: the first two, of 10 and of 90 answers, share one."""
    rows = pd.DataFrame({"difficulty": range(1, 12), "answers": [10, 90, *[100] * 9]})
    facts = dict.fromkeys(("run", "model", "color", "task", "hardness", "training_set"), "x")
    found = task_difficulty._bucketed(rows.assign(**facts, right=5, seed=0, rates=1, chance=0.5))
    assert found["difficulty"].tolist() == [pytest.approx(1.9), *range(3, 12)]
    assert found["value"].tolist() == pytest.approx([0.1, *[0.05] * 9])


@pytest.mark.parametrize(
    ("hardness", "named"), [([None, "pairs to recall"], "pairs to recall"), ([None, None], "difficulty")]
)
def test_the_axis_says_what_the_difficulty_of_the_task_is_where_any_run_recorded_it(hardness, named):
    axes = Figure().subplots()
    task_difficulty._difficulty_axis(axes, pd.DataFrame({"difficulty": [1.0, 4.0], "hardness": hardness}))
    assert axes.get_xlabel() == named
