"""Right answers of every model on every synthetic task, as a table in colours."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparing.tables import model_order, task_table
from analysis.comparing.verdicts import levels_by_task, levels_text
from analysis.figure_entry import TASKS, Entry
from analysis.files import MISSING
from analysis.loading.results import Results
from analysis.plotting.axes import tasks_text
from analysis.plotting.style import INK, heat_map, new_figure, styled
from analysis.statistics import estimate

FIGURES = (
    Entry(
        "task_accuracy",
        "Models and tasks",
        needs=("runs.test_accuracy",),
        section="Tasks",
        place=10,
        compares=True,
        of=TASKS,
    ),
)

DARK = 0.45
"""Shade from which text is white."""

LONG = 12
"""Characters of a task's name above which it is written on two lines."""


def table(results: Results) -> pd.DataFrame:
    """Make `analysis.comparing.tables`: a row per run, and in it what is known of its model on its task."""
    return task_table(results)


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return by model and task: mean accuracy, half_width of its 95 % interval, n (seeds), rank_best."""
    panels = [
        (*key, *estimate(rows["accuracy"]), rows["rank_best"].iloc[0])
        for key, rows in table.groupby(["model", "task"])
    ]
    names = ["model", "task", "mean", "half_width", "n", "rank_best"]
    return pd.DataFrame(panels, columns=names).set_index(["model", "task"])


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a cell for each model and task: white at its floor, black where all is right; bold: the first places."""
    accuracies, models = cells(table), model_order(table)
    levels = levels_by_task(table)
    shade = np.full((len(models), len(levels)), np.nan)
    for (model, task), cell in accuracies.iterrows():
        floor = max(levels[task].values())
        above = (cell["mean"] - floor) / (1 - floor) if floor < 1 else 0.0
        shade[models.index(model), list(levels).index(task)] = np.clip(above, 0, 1)
    figure, (axes,) = new_figure(0.9 + 0.36 * len(models))
    figure.set_figwidth(max(figure.get_figwidth(), 1.5 + 0.85 * len(levels)))
    heat_map(axes, shade, high=1.0)
    axes.set_yticks(range(len(models)), models)
    axes.set_xticks(range(len(levels)), [_heading(*each) for each in levels.items()], fontsize=8)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    for row, column in zip(*np.nonzero(np.isnan(shade)), strict=True):
        axes.text(column, row, MISSING, ha="center", va="center")
    for (model, task), cell in accuracies.iterrows():
        _write(axes, list(levels).index(task), models.index(model), cell, shade)
    return figure


def _heading(task: str, levels: dict[str, float]) -> str:
    name = task.replace(" (", "\n(") if len(task) > LONG else task
    return "\n".join([name, *levels_text(levels, ".2g").split(", ")])


def _write(axes: Axes, column: int, row: int, cell: pd.Series, shade: np.ndarray) -> None:
    """The accuracy, and below it its interval, in a colour that can be read on the cell's."""
    style = {"ha": "center", "va": "center", "color": "white" if shade[row, column] > DARK else INK}
    first = pd.notna(cell["rank_best"]) and cell["rank_best"] == 1
    interval = pd.notna(cell["half_width"])
    weight = "bold" if first else "normal"
    axes.text(column, row - 0.16 * interval, f"{cell['mean']:.3f}", fontsize=8.5, weight=weight, **style)
    if interval:
        axes.text(column, row + 0.22, f"± {cell['half_width']:.3f}", fontsize=6.5, **style)


def caption(table: pd.DataFrame) -> str:
    """Explain colours and weights, and name seeds and tasks."""
    return (
        "Share of right answers on the test split, mean over seeds ± 95 % interval (Student t; none with one seed), "
        "each model at its best learning rate. White: no better than chance, or than copying from a fixed "
        "place, distance or order, or memorising the training data, where these get more; black: all right. Bold: no "
        "other model is shown to be better on that task (all pairs, Holm's correction); models in bold share the first "
        f"place, whatever their order here. {tasks_text(table)}"
    )
