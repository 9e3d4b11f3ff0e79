"""Models are compared within a task, by their right answers: when it counts as learned, and beside which levels."""

import pandas as pd
import pytest
from support.task_runs import write_task_run

from analysis import load_results
from analysis.comparing.tables import model_order, with_final_validation
from analysis.comparing.verdicts import (
    LEARNED,
    answers,
    any_learned,
    families,
    known_levels,
    levels_by_task,
    levels_text,
)


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


@pytest.mark.parametrize(
    ("accuracies", "learned"),
    [
        ({"one": [LEARNED]}, True),
        ({"one": [0.9499]}, False),
        ({"one": [1.0, 0.89]}, False),
        ({"one": [0.5], "two": [1.0, 0.91]}, True),
    ],
)
def test_a_model_has_learned_a_task_with_just_so_many_right_answers_on_average(accuracies, learned):
    rows = [(label, value) for label, values in accuracies.items() for value in values]
    assert any_learned(pd.DataFrame(rows, columns=["label", "test_accuracy"])) is learned


def levels(**columns) -> dict[str, float]:
    return known_levels(pd.DataFrame({name: [value, 0.9] for name, value in columns.items()}))


@pytest.mark.parametrize(
    ("shortcut", "digits", "told"),
    [
        (0.381, ".3f", "chance 0.031, copying 0.381"),
        (0.381, ".2g", "chance 0.031, copying 0.38"),
        (0.042, ".3f", "chance 0.031, copying 0.042"),
        (0.041, ".3f", "chance 0.031"),
        (0.02, ".3f", "chance 0.031"),
        (None, ".3f", "chance 0.031"),
        (float("nan"), ".3f", "chance 0.031"),
        (pd.NA, ".3f", "chance 0.031"),
    ],
)
def test_copying_is_named_where_it_gets_a_hundredth_more_than_chance(shortcut, digits: str, told: str):
    assert levels_text(levels(chance=1 / 32, shortcut=shortcut), digits) == told


@pytest.mark.parametrize(
    ("memorised", "told"),
    [
        (0.7, "chance 0.125, copying 0.500, memory 0.700"),
        (0.505, "chance 0.125, copying 0.500"),
        (0.3, "chance 0.125, copying 0.500"),
        (None, "chance 0.125, copying 0.500"),
    ],
)
def test_a_memory_is_named_where_it_gets_more_than_copying_too(memorised, told: str):
    assert levels_text(levels(chance=0.125, shortcut=0.5, memorised=memorised)) == told


def test_a_memory_is_named_beside_chance_where_copying_gets_nothing():
    assert levels(chance=0.125, shortcut=0.1, memorised=0.5) == {"chance": 0.125, "memory": 0.5}


def test_every_task_has_its_own():
    table = pd.DataFrame({"task": ["b", "a"], "chance": [0.5, 0.25], "shortcut": [0.75, 0.25]})
    assert levels_by_task(table) == {"a": {"chance": 0.25}, "b": {"chance": 0.5, "copying": 0.75}}
    assert list(levels_by_task(table)) == ["a", "b"]


def test_three_digits_are_told_unless_others_are_asked_for():
    assert levels_text({"chance": 0.5, "copying": 0.75}) == "chance 0.500, copying 0.750"
