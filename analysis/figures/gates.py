"""Gates of attention: how open they are, layer by layer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import NoData, listing
from analysis.loading.probes import SUMMARY, probe_measures, select_axis
from analysis.loading.results import Results, advice
from analysis.plotting.axes import draw_line, whole_ticks
from analysis.plotting.style import (
    SeriesStyle,
    band_text,
    dots_text,
    labels_with_data,
    legend_below,
    legend_entries,
    panels,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds, single_heads

FIGURES = (
    Entry(
        "gates",
        "Gates",
        needs=("table.measures",),
        section="Attention",
        place=60,
    ),
)

GATES = ("output", "value", "compressed", "selected", "window")
PARTS = ("mean", "low")
COLUMNS = ("run", "label", "color", "seed", "training_set", "layer", "head", "gate", "part", "value")


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer, head, gate and part (mean; low: the share of values below 0.1).

    Raises NoData where no probed model has gates.
    """
    names = {f"{gate}_gate_{part}": (gate, part) for gate in GATES for part in PARTS}
    if not results.table("measures")["measure"].isin(names).any():
        raise NoData(f"no model of these runs has gates, or none was probed; {advice(results)}")
    rows = select_axis(probe_measures(results, tuple(names)), SUMMARY)
    split = rows["measure"].map(lambda name: names.get(name, (None, None)))
    return rows.assign(gate=split.str[0], part=split.str[1])[list(COLUMNS)]


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a row a gate: left its mean, right the share that is closed; lines: mean over heads, dots: heads."""
    shown = [gate for gate in GATES if (table["gate"] == gate).any()]
    labels, styles = labels_with_data(table), table_styles(table)
    figure, grid = panels(len(shown), len(PARTS), 1.75, sharex=True, sharey=True)
    for gate, line in zip(shown, grid, strict=True):
        for part, axes in zip(PARTS, line, strict=True):
            for label in labels:
                rows = table[(table["gate"] == gate) & (table["part"] == part) & (table["label"] == label)]
                _draw(axes, rows, styles[label], label)
            axes.set_title(f"{gate} gate" if part == "mean" else f"{gate} gate, closed")
            axes.set_ylabel("mean (0 to 1)" if part == "mean" else "share below 0.1")
            axes.set_ylim(-0.04, 1.04)
            whole_ticks(axes.xaxis, 7)
    for axes in grid[-1]:
        axes.set_xlabel("layer (from 0)")
    legend_below(figure, legend_entries(styles, labels), 1)
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle, label: str) -> None:
    if rows.empty:
        return
    heads = single_heads(rows)
    x = heads["layer"].astype("float64")
    axes.plot(
        x,
        heads["value"],
        "o",
        color=series_style.color,
        markersize=3,
        alpha=0.45,
        markeredgewidth=0,
        label="_heads",
    )
    draw_line(axes, over_seeds(rows, "layer"), series_style, label)


def caption(table: pd.DataFrame) -> str:
    """Give the mean of each gate and the share of it that is closed."""
    means = table.dropna(subset=["gate"]).groupby(["label", "gate", "part"])["value"].mean()
    parts = means.unstack().reindex(columns=PARTS)
    models = [
        f"{label}, {gate}: {row['mean']:.2f} ({100 * row['low']:.0f} %)"
        for (label, gate), row in parts.iterrows()
    ]
    without = [label for label in table["label"].unique() if label not in labels_with_data(table)]
    none = f"No such gates: {listing(without, 20)}. " if without else ""
    return (
        f"Lines: mean over heads ({band_text(table)}); dots: {dots_text(table)}. "
        "Mean over layers, in brackets the share of "
        f"values below 0.1: {'; '.join(models)}. {none}{provenance_text(table)}"
    )
