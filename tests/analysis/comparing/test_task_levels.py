"""The levels that accuracies of a task are read beside: chance always, copying where it was measured and tells more."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.comparing.task_levels import has_shortcut, levels_text


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
    assert has_shortcut(1 / 32, shortcut) == ("copying" in told)
    assert levels_text(1 / 32, shortcut, digits) == told


def test_three_digits_are_told_unless_others_are_asked_for():
    assert levels_text(0.5, 0.75) == "chance 0.500, copying 0.750"
