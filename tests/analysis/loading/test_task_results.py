"""Runs of tasks with their answers and their state; which learning rate of a sweep a model is shown with."""

from pathlib import Path

import pandas as pd
import pytest
from support.pretended_runs import model, pretended
from support.task_runs import write_study, write_task_run

from analysis import load_results
from analysis.figures import learning_rates
from analysis.loading import tables
from analysis.loading.probes import best_rates
from analysis.loading.tables import architectures


def test_tasks_are_told_apart_by_the_options_in_which_they_differ(tmp_path, write_run):
    for pairs in (4, 8):
        write_task_run(write_run, tmp_path / "exp", "kda", "mqar", options={"pairs": pairs})
    write_task_run(write_run, tmp_path / "exp", "kda", "parity")
    write_run(tmp_path / "exp", "kda")
    runs = load_results(tmp_path / "exp").runs.set_index("label")
    assert runs["task"].fillna("").to_dict() == {
        "kda mqar (pairs 4)": "mqar (pairs 4)",
        "kda mqar (pairs 8)": "mqar (pairs 8)",
        "kda parity": "parity",
        "kda": "",
    }


def test_a_run_has_its_accuracy_chance_shortcut_and_state(tmp_path, write_run):
    write_task_run(write_run, tmp_path / "exp", "kda", "mqar", accuracy=0.75)
    (run,) = load_results(tmp_path / "exp").runs.itertuples()
    assert (run.task, run.chance, run.shortcut, run.memorised) == ("mqar", 1 / 32, 0.25, 0.03)
    assert run.hardness == "tokens between a key and its question"
    assert (run.test_accuracy, run.validation_accuracy, run.state_bytes_context) == (0.75, 0.75, 4096)


def test_a_task_without_a_measured_shortcut_has_none(tmp_path, write_run):
    """Nor have tables that were published before it was measured, which lack the column."""
    write_task_run(write_run, tmp_path / "exp", "kda", "parity")
    results = load_results(tmp_path / "exp")
    results.to_parquet(tmp_path / "export")
    table = tmp_path / "export" / "runs.parquet"
    pd.read_parquet(table).drop(columns="shortcut").to_parquet(table)
    for found in (results, load_results(tmp_path / "export")):
        assert found.runs["shortcut"].isna().all()


@pytest.mark.slow
def test_answers_are_a_table_and_come_back_from_an_export(tmp_path, write_run):
    results = load_results(write_study(write_run, tmp_path / "exp"))
    table = results.table("answers")
    assert table.groupby(["label", "seed", "split", "axis"])["answers"].sum().eq(1100).all()
    assert set(table["axis"]) == {"position", "difficulty"}
    results.to_parquet(tmp_path / "export")
    again = load_results(tmp_path / "export")
    pd.testing.assert_frame_equal(again.table("answers"), table)
    pd.testing.assert_frame_equal(
        again.runs[["task", "chance", "state_bytes_context"]],
        results.runs[["task", "chance", "state_bytes_context"]],
    )


def test_text_and_tasks_have_tables_of_their_own(tmp_path, write_run):
    write_task_run(write_run, tmp_path / "exp", "kda", "parity")
    write_run(tmp_path / "exp", "kda")
    results = load_results(tmp_path / "exp")
    assert results.of_text.table("answers").empty
    assert set(results.of_tasks.table("answers")["label"]) == {"kda parity"}


def test_text_and_tasks_have_metrics_of_their_own():
    results = pretended(model("kda", [3.0, 3.1]), model("kda mqar", [0.9], data="mqar"))
    for part, labels in ((results.of_text, ["kda"]), (results.of_tasks, ["kda mqar"])):
        assert part.metrics["label"].unique().tolist() == labels
        assert part.metrics["run"].unique().tolist() == part.runs["run"].tolist()


def test_the_last_word_of_a_name_is_a_task_only_of_runs_on_one():
    """A name may end with the word that its text is called by."""
    runs = pretended(model("kda books", [3.0]), model("kda mqar", [0.9], data="mqar")).runs
    assert dict(zip(runs["name"], architectures(runs), strict=True)) == {
        "kda books": "kda books",
        "kda mqar": "kda",
    }


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("test,position,3,10,11,1", "more are right than there are answers"),
        ("test,place,3,10,9,1", "an axis is not one of position, difficulty"),
        ("test,position,3,-1,-1,1", "a number of answers or nats is out of range"),
        ("test,position,3,many,9,1", "cannot be read"),
    ],
)
def test_a_damaged_table_is_a_problem_and_no_answer(tmp_path, write_run, row, says):
    folder = write_task_run(write_run, tmp_path / "exp", "kda", "parity")
    (folder / "answers.csv").write_text(f"split,axis,value,answers,right,nats\n{row}\n")
    results = load_results(tmp_path / "exp")
    assert results.table("answers").empty
    assert any("answers.csv" in problem and says in problem for problem in results.problems)


@pytest.fixture
def swept(tmp_path, write_run):
    """A run at each rate and seed, with these validation losses in order of time; its test loss is the last one.

    whole: rate -> loss of the whole validation split, of runs that were scored on it.
    """

    def make(curves: dict[float, list[list[float]]], name="transformer", option=0, whole=None):
        for rate, seeds in curves.items():
            for seed, losses in enumerate(seeds):
                scores = {"test": {"loss": losses[-1]}} | (
                    {"validation": {"loss": whole[rate]}} if whole else {}
                )
                run = write_run(
                    tmp_path / "exp",
                    name,
                    seed,
                    losses[-1],
                    recipe={"lr": rate, "lr_min": rate / 10},
                    option=option,
                    metrics=scores,
                )
                lines = [f"{step},{step},validation,{loss}" for step, loss in enumerate(losses, 1)]
                (run / "metrics.csv").write_text("\n".join(["step,tokens,split,loss", *lines]) + "\n")
        return load_results(tmp_path / "exp")

    return make


def rates(results) -> list[float]:
    return sorted(set(best_rates(results)["lr"]))


def test_the_luckiest_seed_does_not_choose_the_rate(swept):
    results = swept({1e-3: [[3.0], [3.1]], 1e-2: [[2.5], [3.9]]})
    assert rates(results) == [1e-3]
    winner = learning_rates.best(learning_rates.points(learning_rates.table(results)))
    assert (winner["lr"].tolist(), winner["mean"].tolist()) == ([1e-3], pytest.approx([3.05]))


def test_a_rate_that_fewer_seeds_tried_is_not_chosen(swept):
    """One seed chose and others followed: where it was lucky, they followed another."""
    assert rates(swept({1e-3: [[3.0], [3.1], [3.2]], 1e-2: [[2.9]]})) == [1e-3]


def test_a_run_counts_with_its_lowest_validation_loss(swept):
    """The weights of that step are what is scored and exported."""
    assert rates(swept({1e-3: [[3.2, 3.1]], 1e-2: [[2.9, 3.5]]})) == [1e-2]


def test_the_whole_validation_split_chooses_where_every_run_was_scored_on_it(swept):
    """While training only the beginning of the split may be scored, and here it prefers another rate."""
    curves = {1e-3: [[3.0]], 1e-2: [[2.9]]}
    assert rates(swept(curves, whole={1e-3: 2.8, 1e-2: 3.1})) == [1e-3]


def test_runs_without_an_identity_are_a_sweep_too(swept):
    for folder in swept({1e-3: [[3.0]], 1e-2: [[3.5]]}).runs["folder"]:
        (Path(folder) / "identity.json").unlink()
    assert rates(load_results(Path(folder).parent)) == [1e-3]


def test_a_recorded_selection_counts_the_rates_that_were_tried_on_the_task(tmp_path, write_run):
    tried = {"mqar": (1e-3, 3e-3), "parity": (3e-3, 1e-2, 3e-2)}
    for task in tried:
        write_task_run(write_run, tmp_path / "exp", "kda", task)
    runs = load_results(tmp_path / "exp").runs
    rows = [
        {"task": run.training_set, "model": "kda", "lr": lr, "chosen": lr == 3e-3, "confirmed_by": run.run}
        for run in runs.itertuples()
        for lr in tried[run.data]
    ]
    pd.DataFrame(rows, columns=tables.COLUMNS).to_csv(tmp_path / "exp" / tables.FILE, index=False)
    best = best_rates(load_results(tmp_path / "exp"))
    assert dict(zip(best["data"], best["rates"], strict=True)) == {"mqar": 2, "parity": 3}


@pytest.mark.slow
def test_a_model_that_was_never_validated_is_shown_with_all_its_rates(swept, tmp_path):
    swept({1e-3: [[3.0]], 1e-2: [[3.5]]}, "unknown", 1)
    for file in (tmp_path / "exp").glob("*/metrics.csv"):
        file.write_text("step,tokens,split,loss\n1,1,train,3.0\n")
    results = swept({1e-3: [[3.0]], 1e-2: [[2.5]]}, "known", 2)
    shown = best_rates(results)
    assert sorted(shown.loc[shown["name"] == "unknown", "lr"]) == [1e-3, 1e-2]
    assert list(shown.loc[shown["name"] == "known", "lr"]) == [1e-2]


def test_of_several_settings_at_a_rate_the_lowest_mean_is_drawn_and_not_the_luckiest_seed():
    values = {"a": (2.0, 2.01), "b": (1.9, 2.4)}
    rows = [("m", 1e-3, name, value, False) for name, seeds in values.items() for value in seeds]
    rows.insert(0, ("m", 1e-3, "0, left by halving", None, False))
    table = pd.DataFrame(rows, columns=["model", "lr", "settings", "value", "chosen"])
    (point,) = learning_rates.points(table).itertuples()
    assert (point.mean, point.low, point.seeds) == (pytest.approx(2.005), 2.0, 2)
    chosen = table.assign(chosen=table["settings"] == "b")
    assert learning_rates.points(chosen)["low"].tolist() == [1.9]
