"""Test loss against FLOPs and parameters, with the Pareto fronts."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.comparison import ranking_metric
from analysis.errors import NoData
from analysis.figure_entry import Entry
from analysis.figures.comparison import AXIS
from analysis.loading.results import Results
from analysis.plotting.captions import provenance_text, rates_text, test_set_text
from analysis.plotting.legends import legend_below, legend_entry
from analysis.plotting.style import INK, SeriesStyle, new_figure, styled, table_styles
from analysis.rate_sweeps import best_rates
from analysis.statistics import pareto_front
from analysis.units import listing

FIGURES = (
    Entry(
        "efficiency",
        "Parameters, FLOPs and loss",
        needs=("runs.test_loss", "runs.flops_training", "runs.parameters"),
        section="Cost",
        place=10,
        compares=True,
    ),
)

COLUMNS = (
    "run",
    "label",
    "color",
    "seed",
    "rates",
    "parameters",
    "flops_training",
    "metric",
    "value",
    "training_set",
    "test_set",
)
COSTS = {"flops_training": "training FLOPs per token", "parameters": "parameters"}


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run with a test loss and both costs."""
    runs, metric = best_rates(results), ranking_metric(results.runs)
    runs = runs.dropna(subset=[metric, *COSTS])
    if runs["label"].nunique() < 2:
        raise NoData("fewer than two models have a test loss, FLOPs and parameters: nothing to compare")
    rows = runs.assign(metric=metric, value=runs[metric])[list(COLUMNS)]
    return rows.astype({"parameters": "float64"}).reset_index(drop=True)


def means(table: pd.DataFrame) -> pd.DataFrame:
    """Return both costs and the ``loss`` (mean), ``low`` and ``high`` over seeds by label (the index), best first."""
    grouped = table.groupby("label")
    losses = grouped["value"].agg(loss="mean", low="min", high="max")
    return grouped[list(COSTS)].mean().join(losses).sort_values("loss")


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw loss against FLOPs above and parameters below; dashed: Pareto fronts; bars: lowest to highest seed."""
    found = means(table)
    styles = table_styles(table)
    figure, panels = new_figure(5.2 + 0.21 * ((len(styles) + 2) // 2), rows=2)
    for axes, (cost, name) in zip(panels, COSTS.items(), strict=True):
        _draw_models(axes, found, cost, styles)
        _draw_front(axes, found, cost)
        axes.set(xlabel=name, ylabel=AXIS[table["metric"].iloc[0]])
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.06)
    front = Line2D([], [], color=INK, linestyle="--", linewidth=1.1, label="Pareto front")
    legend_below(
        figure, [*(legend_entry(label, styles[label], linestyle="none") for label in found.index), front]
    )
    return figure


def _draw_models(axes: Axes, found: pd.DataFrame, cost: str, styles: dict[str, SeriesStyle]) -> None:
    for label, row in found.iterrows():
        series_style = styles[label]
        axes.vlines(row[cost], row["low"], row["high"], color=series_style.color, linewidth=1.2, alpha=0.6)
        axes.plot(
            row[cost],
            row["loss"],
            series_style.marker,
            color=series_style.color,
            markersize=8,
            zorder=4,
            label=label,
        )


def _draw_front(axes: Axes, found: pd.DataFrame, cost: str) -> None:
    """Draw the Pareto front as a staircase: the lowest loss of the models up to each cost."""
    front = found.loc[pareto_front(found[[cost, "loss"]])].sort_values(cost)
    dashed = {"color": INK, "linestyle": "--", "linewidth": 1.1, "zorder": 2}
    axes.step(front[cost], front["loss"], where="post", label="_front", **dashed)


def caption(table: pd.DataFrame) -> str:
    """Name the models on each Pareto front."""
    found = means(table)
    fronts = {
        name: found.loc[pareto_front(found[[cost, "loss"]])].sort_values(cost) for cost, name in COSTS.items()
    }
    members = [f"in {name}: {listing(front.index, 40)}" for name, front in fronts.items()]
    both = found.index[pareto_front(found[[*COSTS, "loss"]])]
    several = (found["low"] < found["high"]).any()
    symbols = (
        "mean over seeds; thin lines: lowest to highest seed" if several else "the run's value (one seed)"
    )
    return (
        f"Symbols: {symbols}. "
        f"Pareto front, the models of which none is both cheaper and better: {'; '.join(members)}; "
        f"in all three together: {listing(both, 40)}. The fronts are of the means: chance is not ruled out."
        f"{rates_text(table)} {provenance_text(table)} "
        f"{test_set_text(table)}"
    )
