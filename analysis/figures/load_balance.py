"""How evenly routers use what they route to."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.measured import (
    band_text,
    dots_text,
    draw_line,
    legend_lines,
    measured,
    over_seeds,
    provenance,
    single_heads,
)
from analysis.results import Results
from analysis.routed import noun, with_blocks
from analysis.style import INK, Look, legend_below, looks, new_figure, styled

COLUMNS = (
    *("run", "label", "series", "color", "seed", "training_set", "block", "layer", "head"),
    *("measure", "place", "value"),
)


def table(results: Results) -> pd.DataFrame:
    """A row per run, layer, head and measure: imbalance, and load by place (1: the most loaded of that head).

    A load is relative: share of assignments × number of experts, 1 if balanced.
    """
    rows = with_blocks(measured(results, ("load", "imbalance")).dropna(subset=["run"]))
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
    """Imbalance by layer (dots: heads) above, loads from the most to the least loaded below. table: COLUMNS."""
    styles = looks(table[["series", "color"]].drop_duplicates().itertuples(index=False, name=None))
    figure, (imbalance, load) = new_figure(5.0, rows=2)
    for series, look in styles.items():
        rows = table[table["series"] == series]
        _draw_imbalance(imbalance, rows[rows["measure"] == "imbalance"], look, series)
        _draw_load(load, rows[rows["measure"] == "load"], look, series)
    imbalance.set(xlabel="layer (from 0)", ylabel="imbalance: largest\nover mean load (×)")
    load.set(xlabel="by load (1: the most loaded)", ylabel="share of assignments\nover an equal share (×)")
    load.set_ylim(bottom=0)
    for axes in (imbalance, load):
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=":", label="_balanced")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, legend_lines(styles, styles))
    return figure


def _draw_imbalance(axes: Axes, rows: pd.DataFrame, look: Look, series: str) -> None:
    heads = single_heads(rows)
    dots = {"color": look.color, "markersize": 3.5, "alpha": 0.45, "markeredgewidth": 0}
    axes.plot(heads["layer"].astype("float64"), heads["value"], "o", label="_heads", **dots)
    draw_line(axes, over_seeds(rows, "layer"), look, series)


def _draw_load(axes: Axes, rows: pd.DataFrame, look: Look, series: str) -> None:
    """The line is the mean, the band goes from the least to the most uneven head."""
    spread = rows.groupby("place")["value"].agg(["mean", "min", "max"])
    draw_line(axes, spread, look, series)


def caption(table: pd.DataFrame) -> str:
    """What is routed, and how unevenly."""
    told = []
    for (series, block), rows in table.groupby(["series", "block"], sort=False):
        imbalance = rows.loc[rows["measure"] == "imbalance", "value"]
        choices = int(rows["place"].max()) if rows["place"].notna().any() else 0
        plural = {"memory": "memories"}.get(noun(block), f"{noun(block)}s")
        told.append(
            f"{series}: {choices} {plural}, imbalance {imbalance.mean():.2f} (highest {imbalance.max():.2f})"
        )
    return (
        f"Above: lines, mean over heads ({band_text(table)}); dots, {dots_text(table)}. Below: mean over all heads, "
        "each with its own order of loads; bands: all of them. Dotted: perfect balance. First and further choices "
        f"count alike. {'; '.join(told)}. {provenance(table)}"
    )
