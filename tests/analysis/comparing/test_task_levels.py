"""The levels that accuracies of a task are read beside: chance always, others where they tell more."""

import pandas as pd
import pytest

from analysis.comparing.verdicts import known_levels, levels_by_task, levels_text


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
