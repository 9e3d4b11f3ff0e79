"""Test loss against FLOPs and parameters, with the Pareto fronts of those in which models differ."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.comparing.equal_terms import MATCHED
from analysis.comparing.tables import ranking_metric
from analysis.figure_entry import TEXT, Entry
from analysis.figures.comparison import AXIS
from analysis.files import NoData, listing
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    legend_below,
    legend_entry,
    new_figure,
    provenance_text,
    rates_text,
    styled,
    table_styles,
    test_set_text,
)
from analysis.statistics import pareto_front

FIGURES = (
    Entry(
        "efficiency",
        "Parameters, FLOPs and loss",
        needs=("runs.test_loss", "runs.flops_training", "runs.parameters"),
        section="Cost",
        place=10,
        of=TEXT,
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
    """Make the table: one row per run with a test loss and both costs.

    Raises NoData where fewer than two models have them.
    """
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


def unmatched(points: pd.DataFrame) -> list[str]:
    """Return the costs in which models differ: a front over a matched one would rank what is left by rounding."""
    lowest, highest = points[list(COSTS)].min(), points[list(COSTS)].max()
    # Each may be MATCHED more or less than the model that it was matched with.
    return [cost for cost in COSTS if highest[cost] > lowest[cost] * (1 + MATCHED) / (1 - MATCHED)]


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw loss against FLOPs above and parameters below; dashed: Pareto fronts; bars: lowest to highest seed.

    A cost that all models have alike gets no front, and an axis on which it looks alike.
    """
    points = means(table)
    styles, differing = table_styles(table), unmatched(points)
    figure, panels = new_figure(5.2 + 0.21 * ((len(styles) + 2) // 2), rows=2)
    for axes, (cost, name) in zip(panels, COSTS.items(), strict=True):
        _draw_models(axes, points, cost, styles)
        if cost in differing:
            _draw_front(axes, points, cost)
        else:
            axes.set_xlim(0.9 * points[cost].min(), 1.1 * points[cost].max())
        axes.set(xlabel=name, ylabel=AXIS[table["metric"].iloc[0]])
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.06)
    entries = [legend_entry(label, styles[label], linestyle="none") for label in points.index]
    # Where one model is better than all others the staircase has no step to see.
    if any(
        line.get_linestyle() == "--" and len(line.get_xdata()) > 1 for axes in panels for line in axes.lines
    ):
        entries.append(Line2D([], [], color=INK, linestyle="--", linewidth=1.1, label="Pareto front"))
    legend_below(figure, entries)
    return figure


def _draw_models(axes: Axes, points: pd.DataFrame, cost: str, styles: dict[str, SeriesStyle]) -> None:
    for label, row in points.iterrows():
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


def _draw_front(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    """Draw the Pareto front as a staircase: the lowest loss of the models up to each cost."""
    front = points.loc[pareto_front(points[[cost, "loss"]])].sort_values(cost)
    dashed = {"color": INK, "linestyle": "--", "linewidth": 1.1, "zorder": 2}
    axes.step(front[cost], front["loss"], where="post", label="_front", **dashed)


def caption(table: pd.DataFrame) -> str:
    """Name the models on each Pareto front, and the costs that are matched and have none."""
    points = means(table)
    several = (points["low"] < points["high"]).any()
    symbols = (
        "mean over seeds; thin lines: lowest to highest seed" if several else "the run's value (one seed)"
    )
    return (
        f"Symbols: {symbols}. {_fronts_text(points)}{rates_text(table)} {provenance_text(table)} "
        f"{test_set_text(table)}"
    )


def _fronts_text(points: pd.DataFrame) -> str:
    differing = unmatched(points)
    alike = listing(COSTS[cost] for cost in COSTS if cost not in differing)
    matched = f"No Pareto front over {alike}: all models are alike in that (within {MATCHED:.0%})."
    if len(differing) == len(COSTS):
        matched = ""
    if not differing:
        return matched
    members = [
        f"in {COSTS[cost]}: "
        + listing(points.loc[pareto_front(points[[cost, "loss"]])].sort_values(cost).index, 40)
        for cost in differing
    ]
    both = listing(points.index[pareto_front(points[[*COSTS, "loss"]])], 40)
    together = f"; in all three together: {both}" if len(differing) > 1 else ""
    return (
        f"Pareto front (no model is both cheaper and better than these): {'; '.join(members)}{together}. "
        f"The fronts compare means; chance is not ruled out. {matched}".rstrip()
    )
