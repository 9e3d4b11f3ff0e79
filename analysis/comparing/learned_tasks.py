"""The test that models have learned a synthetic task: where none has, its setting does not count (docs/tasks.md)."""

from __future__ import annotations

import pandas as pd

LEARNED = 0.95
"""A model has learned a task where so many answers of the test split are right, on average over its seeds."""

UNLEARNED = f"neither has {LEARNED:.0%} of the answers right"
"""Why a difference between two models tells little: what either knows of the task may not be its rule."""


def accuracies(runs: pd.DataFrame) -> pd.Series:
    """Return the share of right answers of every model by label, the mean over its runs, the best first."""
    return runs.groupby("label")["test_accuracy"].mean().sort_values(ascending=False, kind="stable")


def any_learned(runs: pd.DataFrame) -> bool:
    """Return whether a model of these runs, all on one task, has learned it."""
    return bool((accuracies(runs) >= LEARNED).any())
