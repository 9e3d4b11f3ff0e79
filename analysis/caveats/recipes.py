"""Caveats about recipes: budgets, steps, learning rates and other settings in which compared models differ."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from analysis.loading.columns import RATES
from analysis.loading.labels import labels
from analysis.loading.tasks import by_task
from analysis.units import engineering, listing, whole

SIZE = ("depth", "d_model")
OTHER = {
    "warmup_steps": "steps of warm-up",
    "weight_decay": "weight decay",
    "clip": "gradient norm limit",
    "precision": "precision",
    "seq_len": "tokens of context",
    "pack": "packing",
}
"""Settings of a recipe, beside budget, steps and rates, that compared models should share."""


def caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats of comparing runs with unequal recipes, one sentence each; of synthetic tasks within each task."""
    return within_tasks(runs, lambda group: [*_budgets(group), *_steps(group), *_others(group)])


def within_tasks(runs: pd.DataFrame, check: Callable[[pd.DataFrame], list[str]]) -> list[str]:
    """Return the caveats of runs on text and of the runs of each task, these with the task's name before them.

    What is said of several tasks in the same words is said once.
    """
    found: dict[str, list[str]] = {}
    for task, group in by_task(runs):
        for text in check(group):
            found.setdefault(text, []).append(task)
    several = runs["task"].nunique(dropna=False) > 1
    return [
        f"{listing(tasks, 20)}: {text}" if several and tasks != [""] else text
        for text, tasks in found.items()
    ]


def counted(values: pd.Series) -> str:
    """Format values with how many runs have each, the most frequent first: "5 (2 runs) and 3 (1 run)"."""
    counts = values.value_counts(sort=True)
    return listing(f"{value} ({count} run{'s' * (count > 1)})" for value, count in counts.items())


def _budget(runs: pd.DataFrame) -> pd.Series:
    return runs["planned_steps"] * runs["tokens_per_step"]


def _budgets(runs: pd.DataFrame) -> list[str]:
    found, budget = [], _budget(runs)
    if budget.nunique() > 1:
        alike = budget.groupby([runs[name] for name in SIZE]).nunique().le(1).all()
        same = ", equal at each size" if alike else ""
        found.append(f"unequal training budgets{same}: {counted(budget.map(engineering) + ' tokens')}.")
    early = runs[runs["steps"] < runs["planned_steps"]]
    if len(early):
        each = (
            f"{row.label} seed {whole(row.seed)} ({engineering(row.tokens)} tokens)"
            for row in early.itertuples()
        )
        found.append(f"stopped before their budget was used: {listing(each, limit=4)}.")
    return found


def _steps(runs: pd.DataFrame) -> list[str]:
    """Equal budgets in unequal numbers of steps."""
    if _budget(runs).nunique() > 1 or runs["planned_steps"].nunique() < 2:
        return []
    return [f"equal tokens in unequal steps: {counted(runs['planned_steps'].map(whole) + ' steps')}."]


def rate_caveats(runs: pd.DataFrame, selection: pd.DataFrame) -> list[str]:
    """Caveats about one learning rate for all models, unequal ones, or a sweep of some models only.

    selection: `Results.selection`; rates that were selected for each model are as they should be, those of an earlier
    study too.
    """
    return [] if len(selection) or runs["lr_study"].notna().all() else within_tasks(runs, _rates)


def _rates(runs: pd.DataFrame) -> list[str]:
    tried = runs.groupby("sweep")["lr"].nunique()
    if len(tried) < 2 or (tried > 1).all():
        return []
    if (tried > 1).any():
        names = labels(runs, "sweep", RATES)[runs["sweep"].map(tried) == 1].unique()
        return [f"learning rates were swept for some models only: {listing(names)} had one each."]
    if runs["lr"].nunique() > 1:
        return [f"unequal learning rates: {counted(runs['lr'].map('{:g}'.format))}."]
    rate = runs["lr"].dropna()
    if rate.empty:
        return []
    return [
        f"one learning rate, {rate.iloc[0]:g}, for all models: the best differs between architectures, and so may "
        "their order at it; sweep optim.lr."
    ]


def _others(runs: pd.DataFrame) -> list[str]:
    differing = [name for name in OTHER if runs[name].nunique(dropna=False) > 1]
    each = (f"{OTHER[name]} {counted(runs[name].astype('str').fillna('none'))}" for name in differing)
    return [f"unequal recipes: {'; '.join(each)}."] if differing else []
