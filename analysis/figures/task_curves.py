"""Right answers on synthetic tasks against training steps."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.comparing.verdicts import LEVELS
from analysis.figure_entry import TASKS, Entry
from analysis.files import NoData
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import chance_text, model_panels, tasks_text, whole_ticks
from analysis.plotting.style import rates_text, styled
from analysis.statistics import curves_over_seeds

FIGURES = (
    Entry(
        "task_curves",
        "Right answers while training",
        needs=("metrics.accuracy",),
        section="Tasks",
        place=20,
        compares=True,
        of=TASKS,
    ),
)

COLUMNS = (
    *("run", "model", "color", "seed", "rates", "task", *LEVELS, "step"),
    *("accuracy", "training_set"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per validation of a run, with the accuracy on what was scored of its split.

    Raises NoData where no validation recorded one.
    """
    runs = best_rates(results)
    wanted = ["experiment", "run", "model", "color", "rates", "task", *LEVELS, "training_set"]
    rows = results.metrics[results.metrics["split"] == "validation"].dropna(subset=["step", "accuracy"])
    joined = rows.merge(runs[wanted], on=["experiment", "run"])
    if joined.empty:
        raise NoData("no run has a validation row with its accuracy in its metrics.csv")
    return joined[list(COLUMNS)].astype({"step": "float64"}).reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a line for each model, the mean over its seeds, with a band from lowest to highest; a panel a task."""
    figure, places = model_panels(table, lambda rows: curves_over_seeds(rows, "step", "accuracy"))
    for axes in places.values():
        whole_ticks(axes.xaxis, 5)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("training steps")
    return figure


def caption(table: pd.DataFrame) -> str:
    """Describe lines, bands and chance, and name seeds and tasks."""
    several = table.groupby(["task", "model"])["seed"].nunique().max() > 1
    lines = (
        "mean over seeds, as far as all seeds go; bands: lowest to highest seed"
        if several
        else "one seed: no band"
    )
    return (
        f"Share of right answers on the validation split while training ({lines}). {chance_text(table)}"
        f"{rates_text(table)} {tasks_text(table)}"
    )
