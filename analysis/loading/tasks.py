"""Synthetic tasks of runs: what they are called, and runs of one model on several of them.

A run of a task has its name and options as its training set, `mqar (length 32, pairs 4)`, and the task's name as the
last word of its own name, `kda mqar`.
"""

from __future__ import annotations

import re

import pandas as pd

from analysis.loading.columns import RATES
from analysis.loading.labels import labels, short_names

_OPTION = re.compile(r", (?=\w+ )")


def task_names(runs: pd.DataFrame) -> pd.Series:
    """Return the task of every run, missing of those on text: "mqar", or "mqar (pairs 4)" where options differ.

    runs: with data, training_set and chance (`Results.runs`).
    """
    of_task = runs["chance"].notna()
    names = runs["data"].where(of_task).astype("object")
    for name, group in runs[of_task].groupby("data"):
        known = {text: _options(text) for text in group["training_set"].unique()}
        if len(known) > 1:
            shown = {text: _differing(options, list(known.values())) for text, options in known.items()}
            names[group.index] = group["training_set"].map(
                lambda text, of=name, by=shown: f"{of} ({by[text]})"
            )
    return names.where(of_task, None).astype("str")


def _options(text: str) -> dict[str, str]:
    """The options in a training set's name, `mqar (length 32, pairs 4)`, by name."""
    inside = str(text).partition(" (")[2].removesuffix(")")
    return {key: value for key, _, value in (each.partition(" ") for each in _OPTION.split(inside))}


def _differing(options: dict[str, str], every: list[dict[str, str]]) -> str:
    """Those options in which one differs from the others: "pairs 4"."""
    told = [
        f"{key} {value}" for key, value in options.items() if any(other.get(key) != value for other in every)
    ]
    return ", ".join(told)


def architectures(runs: pd.DataFrame) -> pd.Series:
    """Return the names of runs without the name of their task: "kda" for "kda mqar"."""
    last = " " + runs["data"].astype("str")
    stripped = [
        name.removesuffix(word) if of_task else name
        for name, word, of_task in zip(runs["name"].astype("str"), last, runs["chance"].notna(), strict=True)
    ]
    return pd.Series(stripped, index=runs.index, dtype="str")


def model_names(runs: pd.DataFrame) -> pd.Series:
    """Return what the models of task runs are called on every task: their label without task and learning rates."""
    return labels(runs.assign(name=architectures(runs)), "sweep", RATES, within="training_set")


def series_names(runs: pd.DataFrame) -> pd.Series:
    """Return the names of architectures, for series of models that differ in size: without words that all share."""
    return short_names(architectures(runs))


def by_task(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the runs on text ("") and those of every task, as far as there are any, with the task's name."""
    groups = runs.groupby(runs["task"].fillna(""), sort=True)
    return [(str(task), group) for task, group in groups]
