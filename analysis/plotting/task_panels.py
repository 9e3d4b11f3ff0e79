"""Figures of synthetic tasks: a panel a task with the level of chance, and what their captions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from analysis.comparing.task_levels import levels_by_task
from analysis.plotting.axes import draw_line
from analysis.plotting.captions import seeds_text
from analysis.plotting.legends import legend_below, legend_entries
from analysis.plotting.style import INK, panels, table_styles
from analysis.units import listing

SHARE = "right answers (share)"
LOSS = "loss (nats/answer)"
COLUMNS = 2
HEIGHT = 2.3
DASHES = {
    "copying": (
        ":",
        "Dotted: what copying from a fixed place, distance or order gets, no key read, where that is more",
    ),
    "memory": (
        "-.",
        "Dashed and dotted: what a memory of as much training gets, no rule known, where that is more",
    ),
}
"""Levels of tasks beside chance: their lines, and what a caption says of them."""

_TICKS = (0, 0.25, 0.5, 0.75, 1)


def task_panels(
    table: pd.DataFrame, legend: float, upwards: str = SHARE, level: str = "chance"
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and a panel for each task of a table, a level dashed, and those of DASHES that it has.

    legend: inches that the legend needs; upwards: what is drawn, a share unless it is `LOSS`; level: the column of the
    table with the level.
    """
    levels = table.groupby("task", sort=False)[level].first().sort_index()
    known = levels_by_task(table)
    columns = min(COLUMNS, len(levels))
    rows = -(-len(levels) // columns)
    figure, grid = panels(rows, columns, HEIGHT)
    figure.set_figheight(rows * HEIGHT + legend)
    places = [axes for row in grid for axes in row]
    for axes, (task, height) in zip(places, levels.items(), strict=False):
        axes.axhline(height, color=INK, linestyle="--", linewidth=0.9, label="_chance")
        for word, (dash, _) in DASHES.items():
            if word in known[task]:
                axes.axhline(known[task][word], color=INK, linestyle=dash, linewidth=0.9, label=f"_{word}")
        axes.set_title(task)
        if upwards != LOSS:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    for row in grid:
        row[0].set_ylabel(upwards)
    for empty in places[len(levels) :]:
        empty.set_axis_off()
    return figure, dict(zip(levels.index, places, strict=False))


def model_panels(
    table: pd.DataFrame,
    curve: Callable[[pd.DataFrame], pd.DataFrame],
    upwards: str = SHARE,
    level: str = "chance",
) -> tuple[Figure, dict[str, Axes]]:
    """Return `task_panels` with a line and a band for each model, and the legend.

    curve: mean, min and max over seeds of the rows of a model and task, by what is drawn to the right.
    """
    styles = table_styles(table, "model")
    figure, places = task_panels(table, 0.21 * ((len(styles) + 1) // 2), upwards, level)
    for (task, model), rows in table.groupby(["task", "model"]):
        found = curve(rows)
        if len(found):
            draw_line(places[task], found, styles[model], model, markevery=max(1, len(found) // 8))
    legend_below(figure, legend_entries(styles))
    return figure, places


def chance_text(table: pd.DataFrame) -> str:
    """Explain the levels of tasks with their numbers: chance, dashed, and those of DASHES that get more."""
    known = levels_by_task(table)
    chances = _levels_text({task: levels["chance"] for task, levels in known.items()})
    told = [f"Dashed: chance, what one gets who sees the place and the token at hand alone ({chances})."]
    for word, (_, meaning) in DASHES.items():
        found = {task: levels[word] for task, levels in known.items() if word in levels}
        told += [f"{meaning} ({_levels_text(found)})."] * bool(found)
    return " ".join(told)


def _levels_text(levels: Mapping[str, float]) -> str:
    return listing((f"{task} {share:.3g}" for task, share in levels.items()), 20)


def tasks_text(table: pd.DataFrame) -> str:
    """Name seeds and tasks with their options: "Seeds 0, 1. Tasks: mqar (length 32, pairs 4)."."""
    tasks = listing(table["training_set"].drop_duplicates().sort_values(), 20)
    return f"{seeds_text(table['seed'].dropna()).capitalize()}. Tasks: {tasks}."
