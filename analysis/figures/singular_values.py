"""Singular values of the streams' mixing: of each sub-block's matrix, and of the product of all so far."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import NoData
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import ROUNDING, deepest, log_gains, sub_block, whole_ticks, with_series
from analysis.plotting.style import INK, panels, provenance_text, styled, table_styles

FIGURES = (
    Entry(
        "singular_values",
        "Singular values of the streams' mixing",
        needs=("measures.h_res_sigma", "measures.composite_sigma"),
        section="Residual streams",
        place=20,
        compares=True,
    ),
)

PANELS = {"h_res_sigma": "each sub-block", "composite_sigma": "product so far"}
COLUMNS = (
    *("run", "label", "series", "color", "depth", "seed", "training_set"),
    *("sub_block", "rank", "measure", "value"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, sub-block and rank (from 0) of each series' deepest model with several streams.

    Raises NoData where every probed model has one stream.
    """
    rows = select_axis(probe_measures(results, tuple(PANELS)), "rank").dropna(subset=["run"])
    rows = rows[rows["part"].isin(("mixer", "channel"))]
    rows = rows[rows.groupby("run")["start"].transform("max") > 0]
    if rows.empty:
        raise NoData("every probed model has one residual stream: its mixing is the number 1")
    rows = deepest(with_series(rows))
    rows = rows.assign(sub_block=sub_block(rows), rank=rows["start"].astype("int64"))
    return rows.sort_values(["series", "seed", "sub_block", "rank"])[list(COLUMNS)].reset_index(drop=True)


def spectrum(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds of each singular value, sub-block by rank; NaN below the precision of fp64."""
    finite = rows[np.isfinite(rows["value"])]
    return finite.pivot_table(index="sub_block", columns="rank", values="value", aggfunc="mean")


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a row a model: left H_res, right the product; a line a singular value, a band between the extremes.

    table: COLUMNS. A column has one log scale for all models.
    """
    styles = table_styles(table, "series")
    figure, grid = panels(len(styles), len(PANELS), 1.55, sharey="col")
    for series, line in zip(styles, grid, strict=True):
        for (measure, what), axes in zip(PANELS.items(), line, strict=True):
            rows = table[(table["series"] == series) & (table["measure"] == measure)]
            _draw(axes, spectrum(rows), styles[series].color)
            axes.set_title(f"{series}\n{what}" if axes is line[0] else f"\n{what}", fontsize=9.5)
        line[0].set_ylabel("σ (×)")
    for axes in (axes for line in grid for axes in line):
        whole_ticks(axes.xaxis, 6)
        log_gains(axes)
    for axes in grid[-1]:
        axes.set_xlabel("sub-block")
    return figure


def _draw(axes: Axes, values: pd.DataFrame, color: str) -> None:
    if values.empty:
        return
    axes.fill_between(
        values.index, values.iloc[:, -1], values.iloc[:, 0], color=color, alpha=0.25, linewidth=0
    )
    for rank in values:
        edge = rank in (values.columns[0], values.columns[-1])
        axes.plot(
            values.index, values[rank], color=color, linewidth=1.8 if edge else 0.8, label=f"σ{rank + 1}"
        )
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":", label="_one")


def caption(table: pd.DataFrame) -> str:
    """Define the spectra, and give their ranges."""
    sentences = []
    for (series, depth), rows in table.groupby(["series", "depth"]):
        each, product = (spectrum(rows[rows["measure"] == name]) for name in PANELS)
        sentences.append(
            f"{series}, {depth} layers: {each.min(axis=None):.3g} to {each.max(axis=None):.3g} a sub-block, "
            f"{product.iloc[-1].min():.3g} to {product.iloc[-1].max():.3g} the whole product"
        )
    return (
        "Singular values of the mixing matrix of each sub-block (2·layer, + 1 for the channel mixer) and of the "
        "product from the first up to it, mean over tokens and seeds; strong lines: the largest and the smallest; "
        f"dotted: 1. Below {ROUNDING:g} is rounding. "
        f"{'; '.join(sentences)}. {provenance_text(table)}"
    )
