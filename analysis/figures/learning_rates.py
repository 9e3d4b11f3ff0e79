"""Final quality against the learning rate."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.comparison import interval_text, ranking_metric
from analysis.errors import NoData
from analysis.figure_entry import Entry
from analysis.figures.comparison import AXIS
from analysis.loading.results import Results
from analysis.plotting.captions import provenance_text, test_set_text
from analysis.plotting.legends import legend_below, legend_entry
from analysis.plotting.style import new_figure, styled, table_styles
from analysis.rate_sweeps import sweeps_as_models
from analysis.statistics import estimate
from analysis.units import listing

FIGURES = (
    Entry(
        "learning_rates",
        "Sensitivity to the learning rate",
        needs=("runs.test_loss", "runs.lr"),
        section="Quality",
        place=60,
        compares=True,
    ),
)

COLUMNS = ("run", "model", "color", "seed", "setting", "lr", "metric", "value", "training_set", "test_set")


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run of each model that was trained with two learning rates or more."""
    runs, metric = sweeps_as_models(results.runs), ranking_metric(results.runs)
    runs = runs[runs[metric].notna() & (runs["lr"] > 0)]
    runs = runs[runs.groupby("model")["lr"].transform("nunique") > 1]
    if runs.empty:
        raise NoData("no model was scored on its test split at two learning rates; sweep optim.lr=3e-4,3e-3")
    found = runs.assign(metric=metric, value=runs[metric])
    return found.sort_values(["model", "lr", "seed"])[list(COLUMNS)].reset_index(drop=True)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting: model, lr, mean, half_width (of the 95 % interval), low, high, seeds; by lr."""
    found = []
    for (model, lr, _), group in table.groupby(["model", "lr", "setting"], sort=False):
        mean, half_width, n = estimate(group["value"])
        low, high = group["value"].min(), group["value"].max()
        found.append((model, lr, mean, half_width, low, high, n))
    names = ["model", "lr", "mean", "half_width", "low", "high", "seeds"]
    return pd.DataFrame(found, columns=names).sort_values(["model", "lr"], ignore_index=True)


def best(found: pd.DataFrame) -> pd.DataFrame:
    """Return each model's row of ``points`` with the lowest mean, best model first; ``edge``: at an end of the sweep.

    edge is "lowest" or "highest" if no rate beyond the best was tried on that side, else empty.
    """
    rows = found.loc[found.groupby("model")["mean"].idxmin()].sort_values("mean", ignore_index=True)
    rates = found.groupby("model")["lr"]
    lowest, highest = (rows["model"].map(limit) == rows["lr"] for limit in (rates.min(), rates.max()))
    edge = lowest.map({True: "lowest", False: ""}).where(~highest, "highest")
    return rows.assign(edge=edge)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw mean quality against rate, a line a model, a band over its seeds, a ring at its best rate."""
    found = points(table)
    winners = best(found)
    styles = table_styles(table, "model")
    figure, (axes,) = new_figure(3.7 + 0.21 * ((len(styles) + 1) // 2))
    for winner in winners.itertuples():
        rows, series_style = found[found["model"] == winner.model], styles[winner.model]
        axes.fill_between(
            rows["lr"], rows["low"], rows["high"], color=series_style.color, alpha=0.12, linewidth=0
        )
        axes.plot(
            rows["lr"],
            rows["mean"],
            **series_style.line(),
            label=winner.model,
        )
        ring = {
            "markersize": 12,
            "markerfacecolor": "none",
            "markeredgewidth": 1.5,
            "color": series_style.color,
        }
        axes.plot(winner.lr, winner.mean, "o", label="_best", **ring)
    axes.set(xscale="log", xlabel="peak learning rate", ylabel=AXIS[table["metric"].iloc[0]])
    axes.xaxis.set_major_locator(FixedLocator(sorted(table["lr"].unique())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    legend_below(figure, [legend_entry(model, styles[model]) for model in winners["model"]])
    return figure


def caption(table: pd.DataFrame) -> str:
    """Name the best rate of every model, and those at an end of the sweep, where a better one may lie beyond."""
    winners = best(points(table))
    told = [
        f"{row.model} {row.lr:g} ({interval_text(row.mean, row.half_width)})" for row in winners.itertuples()
    ]
    text = (
        f"Lines: mean over seeds; bands: lowest to highest seed; rings: best rate. Best: {listing(told, 40)}"
    )
    if (winners["half_width"].notna()).any():
        text += " (±: 95 % interval over seeds, Student t)"
    for end, way in (("highest", "higher"), ("lowest", "lower")):
        models = winners.loc[winners["edge"] == end, "model"]
        if len(models):
            text += f". The {end} rate tried is best for {listing(models, 40)}: a {way} one may be better"
    return f"{text}. {provenance_text(table)} {test_set_text(table)}"
