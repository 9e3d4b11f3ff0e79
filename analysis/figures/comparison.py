"""Final quality of every model, with intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import compare, ranking_metric, unique_seeds
from analysis.errors import NoData
from analysis.marks import dot, rows
from analysis.models import origin_text
from analysis.results import Results
from analysis.style import INK, looks, new_figure, styled
from analysis.units import listing

COLUMNS = ("run", "label", "color", "seed", "metric", "value", "training_set", "test_set")
AXIS = {"test_loss": "test loss (nats/token)", "test_bits_per_byte": "test bits per byte"}


def table(results: Results) -> pd.DataFrame:
    """One row per run: the value of the metric that ranks these runs; best model first."""
    runs, metric = unique_seeds(results.runs), ranking_metric(results.runs)
    runs = runs[runs[metric].notna()]
    if runs.empty:
        raise NoData("no run was scored on its test split; add test to evaluate.splits")
    order = {label: place for place, label in enumerate(compare(runs)["label"])}
    placed = runs.assign(metric=metric, value=runs[metric], place=runs["label"].map(order))
    return placed.sort_values(["place", "seed"])[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """A dot per model with its 95 % interval over seeds, a tick for each seed; best at the top.

    table: COLUMNS, one row per run, in the order of drawing. The axis does not start at zero, hence dots
    rather than bars.
    """
    labels, metric = list(table["label"].unique()), table["metric"].iloc[0]
    styles = looks(table[["label", "color"]].drop_duplicates().itertuples(index=False, name=None))
    figure, (axes,) = new_figure(1.25 + 0.34 * len(labels))
    for height, label in enumerate(labels):
        dot(axes, height, table.loc[table["label"] == label, "value"], styles[label], label)
    rows(axes, len(labels), labels)
    axes.set_xlabel(AXIS[metric])
    if metric == "test_loss":
        _perplexity_axis(axes)
    return figure


def _perplexity_axis(axes: Axes) -> None:
    """The same positions read as perplexity, on top."""
    upper = axes.secondary_xaxis("top", functions=(np.exp, lambda value: np.log(np.maximum(value, 1e-12))))
    upper.set_xlabel("test perplexity per token", color=INK)
    upper.tick_params(length=3)
    upper.xaxis.get_major_locator().set_params(nbins=6)


def caption(table: pd.DataFrame) -> str:
    """What the dots and intervals are, over which seeds, on what text."""
    counts = table.groupby("label")["seed"].nunique()
    if (counts == 1).all():
        what = "Dots: the run's value (one seed: no interval)"
    else:
        what = "Dots: mean over seeds; lines: 95 % confidence interval (Student t); ticks: the single seeds"
        if (counts == 1).any():
            what += "; a dot without a line has one seed: no interval"
    return (
        f"{what}. Best at the top. {origin_text(table)} "
        f"Tested on the whole test split of {listing(table['test_set'].dropna().unique())}."
    )
