"""Right answers on synthetic tasks against the difficulty of an answer: the gap, the length so far."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import TASKS, Entry
from analysis.files import NoData, listing, whole
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import chance_text, length_axis, model_panels, tasks_text, whole_ticks
from analysis.plotting.style import rates_text, styled
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "task_difficulty",
        "Right answers by difficulty",
        needs=("answers.difficulty",),
        section="Tasks",
        place=30,
        compares=True,
        of=TASKS,
    ),
)

BUCKETS = 10
"""Difficulties are put together into no more buckets, of about as many answers each."""

WIDE = 16
"""An axis of difficulties that span this factor, or more, is logarithmic."""

COLUMNS = (
    *("run", "model", "color", "seed", "rates", "task", "hardness", "chance", "difficulty"),
    *("first", "last", "answers", "right", "value", "training_set"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run and bucket of difficulties (first to last, on average `difficulty`).

    Of the test split; value: the share of right answers.
    Raises NoData where no run was scored on its test split.
    """
    runs = best_rates(results)
    wanted = [
        *("experiment", "run", "model", "color", "rates", "task", "hardness", "chance", "training_set"),
    ]
    answers = results.table("answers")
    rows = answers[
        (answers["axis"] == "difficulty") & (answers["split"] == "test") & (answers["answers"] > 0)
    ]
    rows = rows.rename(columns={"value": "difficulty"}).merge(runs[wanted], on=["experiment", "run"])
    if rows.empty:
        raise NoData("no run was scored on its test split; add test to evaluate.splits")
    buckets = pd.concat([_bucketed(group) for _, group in rows.groupby("task")], ignore_index=True)
    return buckets[list(COLUMNS)]


def _bucketed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task in buckets, the same for all its runs."""
    answers = rows.groupby("difficulty")["answers"].sum()
    before = (answers.cumsum() - answers / 2) / answers.sum()
    bucket = np.arange(len(answers)) if len(answers) <= BUCKETS else (before * BUCKETS).astype(int)
    rows = rows.assign(bucket=rows["difficulty"].map(dict(zip(answers.index, bucket, strict=True))))
    weighted = (rows["difficulty"] * rows["answers"]).groupby(rows["bucket"]).sum()
    middle = weighted / rows.groupby("bucket")["answers"].sum()
    keys = [name for name in COLUMNS if name in rows and name not in ("difficulty", "answers", "right")]
    means = rows.groupby([*keys, "bucket"], sort=False, dropna=False).agg(
        first=("difficulty", "min"),
        last=("difficulty", "max"),
        answers=("answers", "sum"),
        right=("right", "sum"),
    )
    means = means.reset_index()
    return means.assign(difficulty=means["bucket"].map(middle), value=means["right"] / means["answers"])


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a line for each model, the mean over its seeds, with a band from lowest to highest; a panel a task."""
    figure, places = model_panels(table, lambda rows: over_seeds(rows, "difficulty"))
    for task, axes in places.items():
        _difficulty_axis(axes, table[table["task"] == task])
    return figure


def _difficulty_axis(axes: Axes, rows: pd.DataFrame) -> None:
    low, high = rows["difficulty"].min(), rows["difficulty"].max()
    if low > 0 and high >= WIDE * low:
        length_axis(axes, span=(low, high))
    else:
        whole_ticks(axes.xaxis, 6)
    named = rows["hardness"].dropna().unique()
    axes.set_xlabel(named[0] if len(named) else "difficulty", fontsize=8)


def caption(table: pd.DataFrame) -> str:
    """Describe lines, buckets and chance, and name seeds and tasks."""
    several = table.groupby(["task", "model"])["seed"].nunique().max() > 1
    lines = "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"
    fewest = table.groupby("task")["answers"].min()
    least = listing((f"{task} {whole(number)}" for task, number in fewest.items()), 20)
    return (
        f"Share of right answers on the test split by the difficulty of an answer ({lines}). At most {BUCKETS} points "
        f"with about equally many answers, drawn at their mean difficulty; fewest answers of a run at a point: "
        f"{least}. {chance_text(table)}{rates_text(table)} {tasks_text(table)}"
    )
