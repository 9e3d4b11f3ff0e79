"""Runs of synthetic tasks are loaded with their task, their answers and their state, and exported again."""

import pandas as pd
import pytest
from support.pretended_runs import model, pretended
from support.task_runs import write_study, write_task_run

from analysis import load_results
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
