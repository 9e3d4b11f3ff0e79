"""Loss of the answers of synthetic tasks along the sequence: what a model makes of its context."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_entry import TASKS, Entry
from analysis.files import NoData
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import LOSS, length_axis, model_panels, tasks_text
from analysis.plotting.style import rates_text, styled
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "task_positions",
        "Loss along the sequence",
        needs=("answers.position",),
        section="Tasks",
        place=35,
        compares=True,
        of=TASKS,
    ),
)

FIRST = 16
"""Tokens of the first bucket; each next one is as long as all before it."""

COLUMNS = (
    *("run", "model", "color", "seed", "rates", "task", "guessing", "position", "start", "end"),
    *("answers", "value", "training_set"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run and bucket of positions, start <= t < end, of the test split.

    position: the mean place of its answers, counted from 1; value: their mean loss; guessing: -ln(chance), both
    nats/answer. Raises NoData where no task asks in more than one bucket.
    """
    runs = best_rates(results)
    answers = results.table("answers")
    rows = answers[(answers["axis"] == "position") & (answers["split"] == "test") & (answers["answers"] > 0)]
    wanted = ["experiment", "run", "model", "color", "rates", "task", "chance", "training_set"]
    rows = rows.merge(runs[wanted], on=["experiment", "run"])
    if rows.empty:
        raise NoData("no run was scored on its test split; add test to evaluate.splits")
    buckets = _bucketed(rows.assign(guessing=-np.log(rows["chance"])))
    several = buckets[buckets.groupby("task")["end"].transform("nunique") > 1]
    if several.empty:
        raise NoData(f"no task asks both within its first {FIRST} tokens and later")
    return several[list(COLUMNS)].reset_index(drop=True)


def _bucketed(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum answers and nats into buckets."""
    doublings = np.ceil(np.log2((rows["value"] + 1) / FIRST)).clip(lower=0)
    end = (FIRST * 2**doublings).astype(int)
    start = (end // 2).where(end > FIRST, 0)
    placed = rows.assign(start=start, end=end, reach=(rows["value"] + 1) * rows["answers"])
    keys = [name for name in COLUMNS if name in placed and name not in ("answers", "value")]
    sums = placed.groupby(keys, sort=False, dropna=False)[["answers", "nats", "reach"]].sum().reset_index()
    middle = sums.groupby(["task", "end"])[["reach", "answers"]].transform("sum")
    return sums.assign(position=middle["reach"] / middle["answers"], value=sums["nats"] / sums["answers"])


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a line for each model, the mean over its seeds, with a band from lowest to highest; a panel a task."""
    figure, places = model_panels(table, lambda rows: over_seeds(rows, "position"), LOSS, "guessing")
    for task, axes in places.items():
        rows = table[table["task"] == task]
        axes.set_ylim(bottom=0)
        length_axis(axes, span=(rows["position"].min(), rows["position"].max()))
        axes.set_xlabel("position in the sequence (tokens)", fontsize=8)
    return figure


def caption(table: pd.DataFrame) -> str:
    """Describe lines, buckets and the level of guessing, and name seeds and tasks."""
    several = table.groupby(["task", "model"])["seed"].nunique().max() > 1
    lines = "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"
    return (
        f"Mean loss of the answers at a position, test split ({lines}). The first bucket has {FIRST} tokens, each "
        "next one as many as all before it; points are at the mean position of a bucket. Dashed: the loss of guessing "
        "without looking back. "
        f"{rates_text(table)} {tasks_text(table)}"
    )
