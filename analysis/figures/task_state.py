"""Right answers on synthetic tasks against the size of the decode state."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparing.verdicts import LEVELS
from analysis.figure_entry import TASKS, Entry
from analysis.files import NoData, listing
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.loading.tables import series_names
from analysis.plotting.axes import byte_axis, bytes_text, chance_text, task_panels, tasks_text
from analysis.plotting.style import (
    SeriesStyle,
    legend_below,
    legend_entries,
    rates_text,
    styled,
    table_styles,
)
from analysis.statistics import estimate

FIGURES = (
    Entry(
        "task_state",
        "Right answers and decode state",
        needs=("runs.test_accuracy", "runs.state_bytes_context"),
        section="Tasks",
        place=40,
        of=TASKS,
    ),
)

COLUMNS = (
    *("run", "series", "model", "color", "seed", "rates", "task", *LEVELS, "seq_len"),
    *("state_bytes", "accuracy", "training_set"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run; state_bytes: of one sequence at the task's length; series: the architecture.

    Raises NoData where no run has both.
    """
    runs = best_rates(results).dropna(subset=["test_accuracy", "state_bytes_context"])
    if runs.empty:
        raise NoData(
            "no run of a synthetic task has both its test accuracy and its decode state at that length"
        )
    rows = runs.assign(
        series=series_names(runs), state_bytes=runs["state_bytes_context"], accuracy=runs["test_accuracy"]
    )
    return rows[list(COLUMNS)].astype({"state_bytes": "float64"}).reset_index(drop=True)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task and model: series, state_bytes, mean accuracy, half_width of its interval, n (seeds)."""
    keys = ["task", "series", "model", "state_bytes"]
    means = [(*key, *estimate(rows["accuracy"])) for key, rows in table.groupby(keys)]
    return pd.DataFrame(means, columns=[*keys, "mean", "half_width", "n"]).sort_values(
        keys, ignore_index=True
    )


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a point for each model with its interval, a line through the sizes of an architecture; a panel a task."""
    styles, means = table_styles(table, "series"), points(table)
    figure, places = task_panels(table, 0.21 * ((len(styles) + 1) // 2))
    for task, axes in places.items():
        drawn = means[(means["task"] == task) & (means["state_bytes"] > 0)]
        for series, rows in drawn.groupby("series"):
            _draw_series(axes, rows.sort_values(["state_bytes", "mean"]), styles[series], series)
        _state_axis(axes, drawn["state_bytes"])
    legend_below(figure, legend_entries(styles))
    return figure


def _state_axis(axes: Axes, sizes: pd.Series) -> None:
    """An axis from the power of two below the smallest state to that above the largest."""
    axes.set_xlabel("decode state of one sequence", fontsize=8)
    axes.set_xscale("log", base=2)
    if len(sizes):
        axes.set_xlim(
            2 ** (math.ceil(math.log2(sizes.min())) - 1.1), 2 ** (math.floor(math.log2(sizes.max())) + 1.1)
        )
        byte_axis(axes.xaxis, most=6)  # a panel is half as wide as a figure
    axes.tick_params(axis="x", labelsize=7.5)


def _draw_series(axes: Axes, rows: pd.DataFrame, style: SeriesStyle, series: str) -> None:
    x, y = rows["state_bytes"], rows["mean"]
    axes.errorbar(
        x, y, yerr=rows["half_width"].fillna(0.0), fmt="none", ecolor=style.color, capsize=3, linewidth=1.2
    )
    axes.plot(x, y, **style.line(), label=series, linewidth=1.3, markersize=6)


def caption(table: pd.DataFrame) -> str:
    """Describe points and lines, name architectures without a state, seeds and tasks."""
    means = points(table)
    lengths = table.groupby("task")["seq_len"].first()
    names = listing((f"{task} {length:,}" for task, length in lengths.items()), 20)
    ends = means.loc[means["state_bytes"] > 0, "state_bytes"]
    span = f" ({bytes_text(ends.min())} to {bytes_text(ends.max())})" if len(ends) else ""
    stateless = means.loc[means["state_bytes"] == 0, "series"].unique()
    without = f" Without a state, and not drawn: {listing(stateless)}." if len(stateless) else ""
    several = "mean over seeds with its 95 % interval (Student t)" if means["n"].max() > 1 else "one seed"
    return (
        "Share of right answers on the test split against the bytes that decoding keeps of one sequence at the task's "
        f"length, counted from the built model{span}; lengths: {names}. Points: {several}; lines join sizes of one "
        f"architecture, which may differ in more than their state.{without} {chance_text(table)}{rates_text(table)} "
        f"{tasks_text(table)}"
    )
