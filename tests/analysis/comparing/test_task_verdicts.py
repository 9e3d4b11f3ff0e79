"""Models are compared within a task, by their right answers, with the statistics of every other comparison."""

import pandas as pd
import pytest
from support.task_runs import write_task_run

from analysis import load_results
from analysis.comparing.tables import model_order, with_final_validation
from analysis.comparing.verdicts import answers, families


def found(results, baseline=None):
    return {one.task: one for one in families(with_final_validation(results), "test_loss", baseline)}


@pytest.mark.slow
def test_seeds_that_do_not_differ_are_equal_and_not_one_seed(tmp_path, write_run):
    for model, accuracy in (
        ("transformer", 0.9),
        ("kda", 0.9),
        ("mesanet", 0.5),
    ):  # 0.1 three times: no exact mean
        for seed in range(3):
            off = 0.01 * seed if model == "mesanet" else 0.0
            write_task_run(write_run, tmp_path / "exp", model, "mqar", seed, accuracy + off)
    (answer,) = answers(found(load_results(tmp_path / "exp")).values())
    said = " ".join(answer.findings)
    assert "Equal to transformer in every seed: kda." in said
    assert "mesanet is behind transformer" in said
    assert "May be the best: kda and transformer" in said


def test_a_model_has_one_name_on_all_tasks_whatever_its_rate(tmp_path, write_run):
    for task, rates in (("mqar", (1e-3, 3e-3)), ("parity", (1e-3,))):
        for rate in rates:
            write_task_run(write_run, tmp_path / "exp", "kda", task, recipe={"lr": rate}, accuracy=100 * rate)
    assert {one.table["model"].item() for one in found(load_results(tmp_path / "exp")).values()} == {"kda"}


@pytest.mark.parametrize(
    ("places", "order"),
    [
        ({"wide": (1, 4, 0.9), "sure": (2, 2, 0.8)}, ["sure", "wide"]),  # by both ends of the places
        ({"less": (1, 2, 0.8), "more": (1, 2, 0.9)}, ["more", "less"]),  # of equal places by right answers
        ({"a": (1, 1, 0.9), "b": (2, 2, 0.95)}, ["a", "b"]),
    ],
)
def test_models_of_tasks_are_listed_by_the_middle_of_their_places_then_by_right_answers(places, order):
    rows = [(model, "mqar", *values) for model, values in places.items()]
    table = pd.DataFrame(rows, columns=["model", "task", "rank_best", "rank_worst", "accuracy"])
    assert model_order(table) == order
