"""Final quality of every model, with intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparing.tables import compare, ranking_metric
from analysis.figure_entry import TEXT, Entry
from analysis.files import NoData
from analysis.loading.probes import unique_seeds
from analysis.loading.results import Results
from analysis.plotting.axes import draw_interval, row_axis, ticks_beside
from analysis.plotting.style import INK, new_figure, provenance_text, styled, table_styles, test_set_text

FIGURES = (
    Entry(
        "comparison",
        "Final quality",
        needs=("runs.test_loss",),
        section="Quality",
        place=50,
        of=TEXT,
        compares=True,
    ),
)

COLUMNS = ("run", "label", "color", "seed", "metric", "value", "training_set", "test_set")
AXIS = {"test_loss": "test loss (nats/token)", "test_bits_per_byte": "test bits per byte"}


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run with the metric that ranks these runs; best model first.

    Raises NoData where no run was scored on its test split.
    """
    runs, metric = unique_seeds(results.runs), ranking_metric(results.runs)
    runs = runs[runs[metric].notna()]
    if runs.empty:
        raise NoData("no run was scored on its test split; add test to evaluate.splits")
    order = {label: place for place, label in enumerate(compare(runs)["label"])}
    placed = runs.assign(metric=metric, value=runs[metric], place=runs["label"].map(order))
    return placed.sort_values(["place", "seed"])[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a dot per model with its 95 % interval over seeds and a tick for each seed; best at the top.

    table: COLUMNS, one row per run, in the order of drawing. The axis does not start at zero, hence dots
    rather than bars.
    """
    labels, metric = list(table["label"].unique()), table["metric"].iloc[0]
    styles = table_styles(table)
    figure, (axes,) = new_figure(1.25 + 0.34 * len(labels))
    for height, label in enumerate(labels):
        draw_interval(axes, height, table.loc[table["label"] == label, "value"], styles[label], label)
    row_axis(axes, len(labels), labels)
    axes.set_xlabel(AXIS[metric])
    if metric == "test_loss":
        _perplexity_axis(axes, ticks_beside(labels))
    return figure


def _perplexity_axis(axes: Axes, ticks: int) -> None:
    """Add an axis of perplexity on top, with so many ticks at most."""
    upper = axes.secondary_xaxis("top", functions=(np.exp, lambda value: np.log(np.maximum(value, 1e-12))))
    upper.set_xlabel("test perplexity per token", color=INK)
    upper.tick_params(length=3)
    upper.xaxis.get_major_locator().set_params(nbins=ticks)


def caption(table: pd.DataFrame) -> str:
    """Describe the dots and intervals, and name the seeds and the text."""
    counts = table.groupby("label")["seed"].nunique()
    if (counts == 1).all():
        what = "Dots: the run's value (one seed: no interval)"
    else:
        what = "Dots: mean over seeds; lines: 95 % confidence interval (Student t); ticks: the single seeds"
        if (counts == 1).any():
            what += "; a dot without a line has one seed: no interval"
    return f"{what}. Best at the top. {provenance_text(table)} {test_set_text(table)}"
