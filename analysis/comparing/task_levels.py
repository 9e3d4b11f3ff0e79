"""Levels to read a synthetic task's accuracies beside: chance, copying without a key, a memory of training."""

from __future__ import annotations

import pandas as pd

LEVELS = {"chance": "chance", "shortcut": "copying", "memorised": "memory"}
"""Columns of ``Results.runs`` with the levels of a run's task, and the word for each; equal for all seeds."""

MARGIN = 0.01
"""A level counts from so much above the others: two standard errors of 10,000 answers, and what a figure can show."""


def known_levels(rows: pd.DataFrame) -> dict[str, float]:
    """Return the levels of a task, by word: chance, and of the others those that get more than all before by MARGIN.

    rows: runs on the task, with the columns of LEVELS; what was not measured is left out.
    """
    found: dict[str, float] = {}
    for column, word in LEVELS.items():
        share = rows[column].iloc[0] if column in rows else float("nan")
        if pd.notna(share) and (not found or share - max(found.values()) >= MARGIN):
            found[word] = float(share)
    return found


def levels_by_task(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return `known_levels` of every task of a table with a column of that name, by task in alphabetical order."""
    return {task: known_levels(rows) for task, rows in table.groupby("task")}


def levels_text(levels: dict[str, float], digits: str = ".3f") -> str:
    """Name levels: "chance 0.031, copying 0.381"."""
    return ", ".join(f"{word} {share:{digits}}" for word, share in levels.items())
