"""Load balance of routers: imbalance by layer, and the loads from the largest to the smallest."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import files
from analysis.figure_entry import Entry
from analysis.loading.columns import plural
from analysis.loading.probes import SUMMARY, probe_measures, select_axis, with_routers
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, whole_ticks
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    band_text,
    dots_text,
    legend_below,
    legend_entries,
    new_figure,
    provenance_text,
    split_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds, single_heads

FIGURES = (
    Entry(
        "load_balance",
        "Load balance of routers",
        needs=("measures.load", "measures.imbalance"),
        section="Routing",
        place=30,
    ),
)

AXES = {"load": "expert", "imbalance": SUMMARY}
COLUMNS = (
    *("run", "label", "series", "color", "seed", "training_set", "block", "noun", "layer", "head"),
    *("measure", "place", "value", "count", "split"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer, head and measure (imbalance; load by place, 1: the most loaded).

    A load is relative: share of assignments × number of experts, 1 if balanced.
    """
    rows = select_axis(probe_measures(results, tuple(AXES)), AXES).dropna(subset=["run"])
    rows = with_routers(rows, results.runs)
    head = ["run", "series", "layer", "part", "head", "measure"]
    by_head = rows.groupby(head, dropna=False)["value"]
    loads = rows["measure"] == "load"
    rows = rows.assign(
        place=by_head.rank(method="first", ascending=False).where(loads),
        value=(rows["value"] * by_head.transform("size")).where(loads, rows["value"]),
    )
    return rows[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw imbalance by layer (dots: heads) above, loads from the largest to the smallest below. table: COLUMNS."""
    styles = table_styles(table, "series")
    figure, (imbalance, load) = new_figure(5.0, rows=2)
    for series, series_style in styles.items():
        rows = table[table["series"] == series]
        _draw_imbalance(imbalance, rows[rows["measure"] == "imbalance"], series_style, series)
        _draw_load(load, rows[rows["measure"] == "load"], series_style, series)
    imbalance.set(xlabel="layer (from 0)", ylabel="imbalance: largest\nover mean load (×)")
    load.set(xlabel="by load (1: the most loaded)", ylabel="share of assignments\nover an equal share (×)")
    load.set_ylim(bottom=0)
    for axes in (imbalance, load):
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=":", label="_balanced")
        whole_ticks(axes.xaxis)
    legend_below(figure, legend_entries(styles))
    return figure


def _draw_imbalance(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle, series: str) -> None:
    heads = single_heads(rows)
    dots = {"color": series_style.color, "markersize": 3.5, "alpha": 0.45, "markeredgewidth": 0}
    axes.plot(heads["layer"].astype("float64"), heads["value"], "o", label="_heads", **dots)
    draw_line(axes, over_seeds(rows, "layer"), series_style, series)


def _draw_load(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle, series: str) -> None:
    """Draw the mean over heads as a line, with a band from the least to the most uneven head."""
    spread = rows.groupby("place")["value"].agg(["mean", "min", "max"])
    draw_line(axes, spread, series_style, series)


def caption(table: pd.DataFrame) -> str:
    """Give the number of choices and the imbalance of each router."""
    models = []
    for (series, word), rows in table.groupby(["series", "noun"], sort=False):
        imbalance = rows.loc[rows["measure"] == "imbalance", "value"]
        choices = int(rows["place"].max()) if rows["place"].notna().any() else 0
        models.append(
            f"{series}: {choices} {plural(word)}, imbalance {imbalance.mean():.2f} (highest {imbalance.max():.2f})"
        )
    return (
        f"Above: lines, mean over heads ({band_text(table)}); dots, {dots_text(table)}. Below: mean over all heads, "
        "each with its own order of loads; bands: all of them. Dotted: perfect balance. First and further choices "
        f"count alike, on {split_text(table)}: {files.whole(table['count'].max())} choices a head. "
        f"{'; '.join(models)}. {provenance_text(table)}"
    )
