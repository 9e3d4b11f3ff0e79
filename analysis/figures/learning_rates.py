"""Validation loss against the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.comparing.tables import interval_text
from analysis.figure_entry import TEXT, Entry
from analysis.files import NoData, listing
from analysis.loading.probes import best_rates, sweeps_as_models, validation_losses
from analysis.loading.results import Results
from analysis.plotting.style import (
    legend_below,
    legend_entry,
    new_figure,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import estimate

FIGURES = (
    Entry(
        "learning_rates",
        "Sensitivity to the learning rate",
        needs=("runs.lr",),
        section="Quality",
        place=60,
        of=TEXT,
        compares=True,
    ),
)

ROOM = 45
"""Characters of rates that have room below the axis; of more every second rate is written, or every third."""

SEEDS = {"markersize": 5, "alpha": 0.7}
COLUMNS = (
    "run",
    "model",
    "color",
    "seed",
    "lr",
    "settings",
    "value",
    "status",
    "chosen",
    "training_set",
    "validation_set",
)
"""value: the validation loss, missing of a run that diverged or that compare.halving left before its end (status
"pruned"); chosen: whether the model's best rate is that row's."""


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run of each model that was trained with two learning rates or more.

    The runs are those of the selection that job=compare recorded, or without one those of the results themselves.
    Raises NoData where no model was validated at two rates.
    """
    swept = _selected(results) if len(results.selection) else _swept(results)
    swept = swept[swept.groupby("model")["lr"].transform("nunique") > 1]
    if swept.empty:
        raise NoData(
            "no model was validated at two learning rates; job=compare does that, or optim.lr=3e-4,3e-3"
        )
    return swept.sort_values(["model", "lr", "seed"])[list(COLUMNS)].reset_index(drop=True)


def _selected(results: Results) -> pd.DataFrame:
    texts = {name: results.runs[name].iloc[0] for name in ("training_set", "validation_set")}
    of_text = results.selection[results.selection["task"] == ""]
    return of_text.rename(columns={"validation_loss": "value"}).assign(**texts)


def _swept(results: Results) -> pd.DataFrame:
    runs = sweeps_as_models(results.runs).join(validation_losses(results).rename("value"))
    best = set(best_rates(results)["setting"])
    runs = runs[runs["value"].notna() & (runs["lr"] > 0)]
    return runs.assign(settings=runs["setting"], status="complete", chosen=runs["setting"].isin(best))


def drawn(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one setting per model and rate: the chosen, or else that of the lowest mean."""
    return pd.concat(_drawn_rows(rate) for _, rate in table.groupby(["model", "lr"], sort=False))


def _drawn_rows(rate: pd.DataFrame) -> pd.DataFrame:
    groups = [group for _, group in rate.groupby("settings", dropna=False)]
    return min(groups, key=lambda one: (not one["chosen"].any(), one["value"].fillna(math.inf).mean()))


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model and rate: mean, half_width (of the 95 % interval), low, high, seeds, chosen; by rate.

    Of the settings that are ``drawn``. A run without a loss leaves its rate without a mean, as when one is selected.
    """
    means = []
    for (model, lr), group in drawn(table).groupby(["model", "lr"], sort=False):
        values = group["value"] if group["value"].notna().all() else group["value"].iloc[:0]
        means.append((model, lr, *estimate(values), values.min(), values.max(), group["chosen"].any()))
    names = ["model", "lr", "mean", "half_width", "seeds", "low", "high", "chosen"]
    return pd.DataFrame(means, columns=names).sort_values(["model", "lr"], ignore_index=True)


def best(means: pd.DataFrame) -> pd.DataFrame:
    """Return each model's chosen row of ``points``, best model first; ``edge``: at an end of the rates tried.

    edge is "lowest" or "highest" if no rate beyond the chosen one was tried on that side, else empty.
    """
    rows = means[means["chosen"]].sort_values("mean", ignore_index=True)
    rates = means.groupby("model")["lr"]
    lowest, highest = (rows["model"].map(limit) == rows["lr"] for limit in (rates.min(), rates.max()))
    edge = lowest.map({True: "lowest", False: ""}).where(~highest, "highest")
    return rows.assign(edge=edge)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw the mean loss against the rate, a line a model, a band and dots of its seeds, a ring at the chosen rate."""
    means, runs = points(table), drawn(table)
    runs = runs[runs.groupby(["model", "lr"])["run"].transform("size") > 1]
    winners = best(means)
    styles = table_styles(table, "model")
    figure, (axes,) = new_figure(3.7 + 0.21 * ((len(styles) + 1) // 2))
    for winner in winners.itertuples():
        rows, series_style = means[means["model"] == winner.model], styles[winner.model]
        axes.fill_between(
            rows["lr"], rows["low"], rows["high"], color=series_style.color, alpha=0.12, linewidth=0
        )
        axes.plot(
            rows["lr"],
            rows["mean"],
            **series_style.line(),
            label=winner.model,
        )
        seeds = runs[runs["model"] == winner.model]
        if len(seeds):
            axes.plot(seeds["lr"], seeds["value"], ".", label="_seeds", color=series_style.color, **SEEDS)
        ring = {
            "markersize": 12,
            "markerfacecolor": "none",
            "markeredgewidth": 1.5,
            "color": series_style.color,
        }
        axes.plot(winner.lr, winner.mean, "o", label="_best", **ring)
    axes.set(xscale="log", xlabel="peak learning rate", ylabel="validation loss (nats/token)")
    rates = sorted(table["lr"].unique())
    step = -(-sum(len(f"{rate:.3g}") + 1 for rate in rates) // ROOM)
    axes.xaxis.set_major_locator(FixedLocator(rates[::step]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    legend_below(figure, [legend_entry(model, styles[model]) for model in winners["model"]])
    return figure


def caption(table: pd.DataFrame) -> str:
    """Name the chosen rate of every model, and the ends of the sweep beyond which a better one may lie."""
    means = points(table)
    winners, counts = best(means), sorted(set(means["seeds"]) - {0})
    rates = [f"{row.model} {row.lr:g} ({_loss(row, counts)})" for row in winners.itertuples()]
    over = " or ".join(map(str, counts))
    lines = f"Lines: mean over {over} seeds; dots: single seeds; bands: lowest to highest seed; rings"
    what = lines if counts[-1] > 1 else "Rings"
    text = f"{what}: the rate chosen by the loss on the validation split. Chosen: {listing(rates, 40)}"
    if (winners["half_width"].notna()).any():
        text += " (±: 95 % interval over seeds, Student t)"
    for end, way in (("highest", "higher"), ("lowest", "lower")):
        models = winners.loc[winners["edge"] == end, "model"]
        if len(models):
            text += f". The {end} rate tried is best for {listing(models, 40)}: a {way} one may be better"
    lost, left = table["value"].isna(), table["status"] == "pruned"
    for why, rows in (("Left by halving, not drawn", left), ("Diverged", lost & ~left)):
        if rows.any():
            text += f". {why}: {listing(_lost(table, rows), 40)}"
    return f"{text}. {provenance_text(table)}"


def _loss(winner: NamedTuple, counts: list[int]) -> str:
    """The mean of a chosen rate with its interval, and its seeds where rates have unequal numbers of them."""
    seeds = f", {winner.seeds} seed{'s' * (winner.seeds > 1)}" if len(counts) > 1 else ""
    return interval_text(winner.mean, winner.half_width) + seeds


def _lost(table: pd.DataFrame, rows: pd.Series) -> Iterator[str]:
    """Name the rates of these rows, and how many seeds these are where the same settings have others too."""
    for (model, lr, _), runs in table.groupby(["model", "lr", "settings"], sort=False, dropna=False):
        lost = rows[runs.index].sum()
        if lost:
            yield f"{model} at {lr:g}" + (f" ({lost} of {len(runs)} seeds)" if lost < len(runs) else "")
