"""Learned sparsity: the number of selected keys, and the share of dense attention on them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figure_entry import Entry
from analysis.loading.probes import SUMMARY, probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, layer_axis, length_axis, plain_log_ticks
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    absent_text,
    band_text,
    labels_with_data,
    legend_below,
    legend_entries,
    new_figure,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "selection",
        "Learned sparsity",
        needs=("measures.selected_keys",),
        section="Attention",
        place=70,
    ),
)

MEASURES = ("selected_keys", "selected_distance", "selected_mass", "selected_mass_random")
CHANCE = {"linewidth": 0.9, "markerfacecolor": "white"}
COLUMNS = (
    "run",
    "label",
    "color",
    "seed",
    "training_set",
    "layer",
    "measure",
    "axis",
    "start",
    "end",
    "value",
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer, measure and bucket of positions, and one over all; heads averaged."""
    rows = probe_measures(results, MEASURES)
    by = [column for column in COLUMNS if column != "value"]
    return rows.groupby(by, sort=False, dropna=False)["value"].mean().reset_index()


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw keys by position and, where dense attention was recorded, its mass on them by position and layer."""
    labels, styles = labels_with_data(table), table_styles(table)
    dense = (table["measure"] == "selected_mass").any()
    figure, axes = new_figure((6.9 if dense else 2.6) + 0.21 * len(labels), rows=3 if dense else 1)
    _draw_keys(axes[0], table, labels, styles)
    if dense:
        positions = _middle(table)
        _draw_mass(axes[1], positions, "middle", styles)
        length_axis(axes[1], span=(positions["middle"].min(), positions["end"].max()))
        axes[1].set_xlabel("position of the query (tokens)")
        axes[1].set_title("what they hold of dense attention, by position")
        _draw_mass(axes[2], select_axis(table, SUMMARY), "layer", styles)
        layer_axis(axes[2])
        axes[2].set_title("by layer, queries of the second half")
    chance = (
        [
            Line2D(
                [], [], color=INK, marker="o", markersize=4, label="hollow: as many keys at random", **CHANCE
            )
        ]
        if dense
        else []
    )
    legend_below(figure, [*legend_entries(styles, labels), *chance])
    return figure


def _middle(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by position, with the middle of each bucket."""
    rows = select_axis(table, "position")
    return rows.assign(middle=(rows["start"] + rows["end"]) / 2)


def _draw_keys(axes: Axes, table: pd.DataFrame, labels: list[str], styles: dict[str, SeriesStyle]) -> None:
    rows = _middle(table[table["measure"] == "selected_keys"])
    for label in labels:
        draw_line(axes, over_seeds(rows[rows["label"] == label], "middle"), styles[label], label)
    low, high = rows["middle"].min(), rows["end"].max()
    positions = np.geomspace(low, high, 50)
    axes.plot(positions, positions + 1, color=INK, linestyle="--", linewidth=1, label="_visible")
    length_axis(axes, span=(low, high))
    axes.set_yscale("log", base=2)
    plain_log_ticks(axes.yaxis, base=2)
    axes.set(xlabel="position of the query (tokens)", ylabel="keys (tokens a query)")
    axes.set_title("keys that a query may read; dashed: all visible")


def _draw_mass(axes: Axes, rows: pd.DataFrame, by: str, styles: dict[str, SeriesStyle]) -> None:
    for label in dict.fromkeys(rows.loc[rows["measure"] == "selected_mass", "label"]):
        mine = rows[rows["label"] == label]
        draw_line(axes, over_seeds(mine[mine["measure"] == "selected_mass"], by), styles[label], label)
        random = over_seeds(mine[mine["measure"] == "selected_mass_random"], by)
        draw_line(axes, random, styles[label], f"{label}, random", **CHANCE)
    axes.set(ylabel="share of mass", ylim=(0, 1.04))


def caption(table: pd.DataFrame) -> str:
    """State each model's number of keys, their distance, and their share of dense attention, as of random keys."""
    axis = select_axis(table, SUMMARY)
    means = axis.groupby(["label", "measure"])["value"].mean().unstack()
    sentences = "; ".join(_mean_text(label, row) for label, row in means.iterrows())
    return (
        f"Means over heads and layers ({band_text(table)}). Over all positions: {sentences}. "
        "Dense attention is what the block would do with every key; only blocks that learn to find it show it. "
        f"{absent_text(table, 'No selection')}{provenance_text(table)}"
    )


def _mean_text(label: str, row: pd.Series) -> str:
    text = f"{label} {row['selected_keys']:.1f} keys a query"
    if pd.notna(row.get("selected_distance")):
        text += f", {row['selected_distance']:.1f} tokens away"
    if pd.notna(row.get("selected_mass")):
        text += f", {row['selected_mass']:.2f} of dense attention's mass in the second half"
    if pd.notna(row.get("selected_mass_random")):
        text += f" (at random {row['selected_mass_random']:.2f})"
    return text
