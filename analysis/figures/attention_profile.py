"""Spread of attention: entropy by position, mass of the largest weights, share by distance."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, length_axis
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    absent_text,
    band_text,
    labels_with_data,
    new_figure,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "attention_profile",
        "How attention spreads",
        needs=("measures.attention_entropy", "measures.top_mass", "measures.distance_mass"),
        section="Attention",
        place=50,
    ),
)

AXES = {"attention_entropy": "position", "top_mass": "rank", "distance_mass": "distance"}
COLUMNS = ("run", "label", "color", "seed", "training_set", "measure", "start", "end", "value")
RANKS = (1, 8)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, measure and bucket, the mean over layers and heads."""
    rows = select_axis(probe_measures(results, tuple(AXES)), AXES)
    by = [column for column in COLUMNS if column != "value"]
    return rows.groupby(by, sort=False, dropna=False)["value"].mean().reset_index()


def uniform_entropy(start: int, end: int) -> float:
    """Return the entropy of uniform attention in nats: the mean of log(t + 1) over positions start <= t < end."""
    return float(np.log(np.arange(start, end) + 1).mean())


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw mass on the largest weights, entropy by position and mass by distance, a panel each. table: COLUMNS."""
    labels, styles = labels_with_data(table), table_styles(table)
    rows = 0.7 + 0.29 * len(labels)
    figure, (top, entropy, distance) = new_figure(5.4 + rows, rows=3, height_ratios=(rows, 2.7, 2.7))
    _draw_top(top, table, labels, styles)
    _draw_entropy(entropy, table, labels, styles)
    _draw_distance(distance, table, labels, styles)
    return figure


def _of(table: pd.DataFrame, measure: str, label: str) -> pd.DataFrame:
    return table[(table["measure"] == measure) & (table["label"] == label)]


def _draw_entropy(axes: Axes, table: pd.DataFrame, labels: list[str], styles: dict[str, SeriesStyle]) -> None:
    buckets = (
        table.loc[table["measure"] == "attention_entropy", ["start", "end"]]
        .drop_duplicates()
        .sort_values("start")
    )
    for label in labels:
        rows = _of(table, "attention_entropy", label)
        middle = rows.assign(middle=(rows["start"] + rows["end"]) / 2)
        draw_line(axes, over_seeds(middle, "middle"), styles[label], label)
    axes.plot(
        (buckets["start"] + buckets["end"]) / 2,
        [uniform_entropy(int(start), int(end)) for start, end in buckets.itertuples(index=False)],
        color=INK,
        linestyle="--",
        linewidth=1,
        label="_uniform",
    )
    length_axis(axes, span=((buckets["start"].iloc[0] + buckets["end"].iloc[0]) / 2, buckets["end"].max()))
    axes.set(xlabel="position of the query (tokens)", ylabel="entropy (nats)", ylim=(0, None))
    axes.set_title("entropy; dashed: uniform, log(t + 1)")


def _draw_distance(
    axes: Axes, table: pd.DataFrame, labels: list[str], styles: dict[str, SeriesStyle]
) -> None:
    """Buckets double, so that equal steps along the axis are equal factors of distance."""
    buckets = sorted(
        set(
            table.loc[table["measure"] == "distance_mass", ["start", "end"]].itertuples(
                index=False, name=None
            )
        )
    )
    places = {start: place for place, (start, _) in enumerate(buckets)}
    for label in labels:
        rows = _of(table, "distance_mass", label)
        draw_line(
            axes, over_seeds(rows.assign(place=rows["start"].map(places)), "place"), styles[label], label
        )
    names = [f"{start:g}" if end - start <= 1 else f"{start:g}–{end - 1:g}" for start, end in buckets]
    axes.set_xticks(range(len(buckets)), names, rotation=30 if len(buckets) > 7 else 0)
    axes.set(xlabel="distance from query to key (tokens)", ylabel="share of mass", ylim=(0, None))
    axes.set_title("mass by distance")


def _draw_top(axes: Axes, table: pd.DataFrame, labels: list[str], styles: dict[str, SeriesStyle]) -> None:
    for height, label in enumerate(labels):
        rows, color = _of(table, "top_mass", label), styles[label].color
        means = over_seeds(rows, "end")["mean"].reindex(RANKS)
        axes.plot(means, [height] * len(means), linestyle=styles[label].linestyle, color=color, label="_span")
        for rank, filled in zip(RANKS, (color, "white"), strict=True):
            axes.plot(
                means[rank],
                height,
                styles[label].marker,
                color=color,
                markerfacecolor=filled,
                label=f"{label}, {rank}",
            )
    axes.set_yticks(range(len(labels)), [textwrap.fill(label, 14) for label in labels], fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set(xlabel="share of mass", xlim=(0, 1.03))
    axes.set_title("mass on the largest weight (full), the 8 largest (hollow)")


def caption(table: pd.DataFrame) -> str:
    """Describe the averages, and name the models without attention."""
    return (
        f"Means over layers and heads, then over tokens ({band_text(table)}). A model that may read only part of "
        "the past has less than uniform entropy for that reason alone. Early queries see few keys, which raises "
        f"the mass on the largest. {absent_text(table, 'No attention shown')}{provenance_text(table)}"
    )
