"""Gradient norm while training."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figure_entry import Entry
from analysis.files import NoData
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import plain_log_ticks
from analysis.plotting.style import (
    INK,
    legend_below,
    legend_entry,
    new_figure,
    provenance_text,
    rates_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "gradient_norms",
        "Gradient norms while training",
        needs=("metrics.step", "metrics.grad_norm"),
        section="Quality",
        place=40,
        compares=True,
    ),
)

COLUMNS = ("run", "label", "color", "seed", "rates", "training_set", "clip", "step", "grad_norm")
PARTS = 20
"""A smooth line is a running mean over a twentieth of the points."""


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per training row with a positive gradient norm.

    Raises NoData where there is none.
    """
    runs = best_rates(results)[["experiment", "run", "color", "rates", "training_set", "clip"]]
    joined = results.metrics.merge(runs, on=["experiment", "run"])
    joined = joined[(joined["split"] == "train") & (joined["grad_norm"] > 0)].dropna(subset=["step"])
    if joined.empty:
        raise NoData("no run has a positive grad_norm in its metrics.csv")
    return joined[list(COLUMNS)].astype({"step": "float64"}).reset_index(drop=True)


def geometric_mean(norms: pd.DataFrame) -> pd.Series:
    """Return the geometric mean over seeds by step (the index), at the steps that every seed has."""
    logs = norms.assign(value=np.log(norms["grad_norm"]))
    return np.exp(over_seeds(logs, "step")["mean"])


def smooth(norms: pd.Series) -> pd.Series:
    """Return the running geometric mean over ``window`` points, centred; fewer at the ends."""
    return np.exp(np.log(norms).rolling(window(len(norms)), center=True, min_periods=1).mean())


def window(count: int) -> int:
    """Return the width of the running mean: an odd number of points, about a twentieth of ``count``."""
    return count // PARTS // 2 * 2 + 1


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw every model's norm before clipping, recorded (faint) and smoothed (strong); log scale."""
    styles = table_styles(table)
    figure, (axes,) = new_figure(3.9 + 0.21 * ((len(styles) + 2) // 2))
    for label, series_style in styles.items():
        norms = geometric_mean(table[table["label"] == label])
        axes.plot(
            norms.index,
            norms,
            color=series_style.color,
            alpha=0.25,
            linewidth=0.8,
            label=f"{label}, recorded",
        )
        axes.plot(
            norms.index,
            smooth(norms),
            **series_style.line(),
            markersize=4,
            linewidth=1.5,
            markevery=max(1, len(norms) // 10),
            label=label,
        )
    clips = table["clip"].dropna().unique()
    for clip in clips:
        axes.axhline(clip, color=INK, linestyle=":", linewidth=1.2)
    axes.set(yscale="log", xlabel="optimiser step", ylabel="gradient norm before clipping")
    axes.grid(axis="y", which="both", linewidth=0.5)
    plain_log_ticks(axes.yaxis)
    limit = (
        [Line2D([], [], color=INK, linestyle=":", linewidth=1.2, label="clipped above")] if len(clips) else []
    )
    legend_below(
        figure,
        [
            *(legend_entry(label, series_style, markersize=4) for label, series_style in styles.items()),
            *limit,
        ],
    )
    return figure


def caption(table: pd.DataFrame) -> str:
    """Describe the smoothing, and name the seeds."""
    counts = table.groupby("label")["step"].nunique()
    points = window(int(counts.max()))
    strong = f"strong lines: running mean of {points} points" if points > 1 else "few points: not smoothed"
    return (
        f"Norm of the gradient of all parameters before clipping, of the one step at each point. Faint lines: "
        f"geometric mean over seeds, at the steps that all have; {strong}.{rates_text(table)} {provenance_text(table)}"
    )
