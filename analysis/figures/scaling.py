"""Loss against model size and training compute: a power law for every architecture."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, ScalarFormatter

from analysis.comparing.tables import ranking_metric
from analysis.figure_entry import TEXT, Entry
from analysis.figures.comparison import AXIS
from analysis.files import NoData
from analysis.loading.columns import short_names
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import plain_log_ticks
from analysis.plotting.style import (
    SeriesStyle,
    legend_below,
    legend_entries,
    new_figure,
    provenance_text,
    rates_text,
    styled,
    table_styles,
    test_set_text,
)
from analysis.statistics import SIZES_FOR_A_FLOOR, SIZES_FOR_A_LINE, Exponent, fit_line, fit_with_floor

FIGURES = (
    Entry(
        "scaling",
        "Loss against size",
        needs=("runs.test_loss", "runs.parameters_non_embedding", "runs.flops_training"),
        section="Quality",
        place=70,
        of=TEXT,
        compares=True,
    ),
)

COSTS = {
    "parameters_non_embedding": "parameters beside the embedding",
    "training_flops": "training compute (FLOPs)",
}
COLUMNS = (
    *("run", "label", "series", "color", "seed", "rates", "depth", "d_model", "tokens"),
    *(*COSTS, "metric", "value", "training_set", "test_set"),
)
FITS = {"line": fit_line, "floor": fit_with_floor}


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run, at the best rate of each size, of models trained at three sizes or more.

    With exponents of the model's fits (`exponents`) in every row: line_COST, floor_COST, each with _low and _high.
    Raises NoData where no model has three sizes.
    """
    runs, metric = best_rates(results), ranking_metric(results.runs)
    runs = runs.dropna(subset=[metric, "parameters_non_embedding", "flops_training", "tokens"])
    runs = runs[runs["parameters_non_embedding"] > 0]
    runs = runs.assign(
        series=short_names(runs["name"]),
        metric=metric,
        value=runs[metric],
        training_flops=runs["flops_training"] * runs["tokens"].astype("float64"),
    )
    rows = runs.astype({"parameters_non_embedding": "float64"})[list(COLUMNS)]
    rows = rows[rows.groupby("series")["parameters_non_embedding"].transform("nunique") >= SIZES_FOR_A_LINE]
    if rows.empty:
        raise NoData(
            f"no model was tested at {SIZES_FOR_A_LINE} sizes or more: "
            "python run.py --multirun +experiment=scaling data=wikitext103"
        )
    fits = exponents(rows).drop(columns=["sizes", "n"])
    return rows.merge(fits, on="series").sort_values(["series", *COSTS, "seed"], ignore_index=True)


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per series: line_COST and floor_COST with _low and _high, sizes, n (runs); NaN where unknown."""
    fits = []
    for series, group in rows.groupby("series"):
        row = {"series": series, "sizes": group["parameters_non_embedding"].nunique(), "n": len(group)}
        for cost in COSTS:
            for name, fit in FITS.items():
                fitted = fit(group[cost], group["value"]) or Exponent(*[math.nan] * 4)
                row |= {
                    f"{name}_{cost}": fitted.value,
                    f"{name}_{cost}_low": fitted.low,
                    f"{name}_{cost}_high": fitted.high,
                }
        fits.append(row)
    return pd.DataFrame(fits)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw loss against parameters above and compute below, a point a run, a line a fitted power law; log scales."""
    styles = table_styles(table, "series")
    figure, panels = new_figure(5.4 + 0.21 * ((len(styles) + 2) // 3), rows=2)
    for axes, (cost, name) in zip(panels, COSTS.items(), strict=True):
        for series, rows in table.groupby("series"):
            _draw_series(axes, rows, cost, styles[series])
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel=AXIS[table["metric"].iloc[0]])
        plain_log_ticks(axes.xaxis)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for places in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            places(ScalarFormatter())
    legend_below(figure, legend_entries(styles))
    return figure


def _draw_series(axes: Axes, rows: pd.DataFrame, cost: str, style: SeriesStyle) -> None:
    """Points of all runs, and the line through the means of the logarithms with the fitted exponent."""
    axes.plot(rows[cost], rows["value"], style.marker, color=style.color, markersize=5, alpha=0.8)
    middle, level = (math.exp(rows[name].map(math.log).mean()) for name in (cost, "value"))
    ends = pd.Series([rows[cost].min(), rows[cost].max()])
    exponent = rows[f"line_{cost}"].iloc[0]
    axes.plot(ends, level * (ends / middle) ** -exponent, color=style.color, linewidth=1.2, alpha=0.8)


def caption(table: pd.DataFrame) -> str:
    """Name each model's exponents with their intervals, and say what so many sizes can tell."""
    fits = exponents(table).sort_values("line_training_flops", ascending=False)
    sentences = [
        f"{row.series} {_interval(row, 'line_parameters_non_embedding')} and {_interval(row, 'line_training_flops')}"
        for row in fits.itertuples()
    ]
    return (
        "Points: runs; lines: L = A·N^−α, straight in these logarithmic axes. α against parameters beside the "
        f"embedding and against training compute, with 95 % intervals of the least-squares slope: "
        f"{'; '.join(sentences)}. {_floors(fits)}{rates_text(table)} {provenance_text(table)} {test_set_text(table)}"
    )


def _interval(row: object, name: str) -> str:
    value, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _floors(fits: pd.DataFrame) -> str:
    """Say what is known of an irreducible loss: nothing with three sizes, an exponent and its interval with more."""
    known = fits[fits["sizes"] >= SIZES_FOR_A_FLOOR]
    if known.empty:
        return (
            "An irreducible loss E in L = E + A·N^−α cannot be told from three sizes: without it α is too low wherever "
            "there is one, and these lines do not extrapolate."
        )
    floors = [
        f"{row.series} {_interval(row, 'floor_parameters_non_embedding')}" for row in known.itertuples()
    ]
    return f"With an irreducible loss, L = E + A·N^−α, against parameters: {'; '.join(floors)}."
