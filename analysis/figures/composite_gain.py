"""Composite gain of residual mixing over depth: gains of the product of all H_res up to a sub-block."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import listing
from analysis.loading.probes import SUMMARY, probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import (
    ROUNDING,
    depth_panels,
    draw_line,
    drawn_depths,
    left_out_text,
    log_gains,
    sub_block,
    with_series,
)
from analysis.plotting.style import (
    band_text,
    legend_below,
    legend_entries,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "composite_gain",
        "Composite gain over depth",
        needs=("measures.composite_amax", "measures.composite_sigma_max", "measures.composite_sigma_min"),
        section="Residual streams",
        place=10,
        compares=True,
    ),
)

PANELS = {
    "composite_amax": "Amax gain (×)",
    "composite_sigma_max": "largest σ (×)",
    "composite_sigma_min": "smallest σ (×)",
}
COLUMNS = (
    *("run", "label", "series", "color", "residual", "depth", "seed", "training_set"),
    *("sub_block", "measure", "value"),
)
PLAIN, PLAIN_COLOR = "plain residual", "#4D4D4D"


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, sub-block and gain; several models with a plain residual form one series."""
    rows = select_axis(probe_measures(results, tuple(PANELS)), SUMMARY).dropna(subset=["run"])
    rows = with_series(rows[rows["part"].isin(("mixer", "channel"))])
    plain = rows["residual"] == "add"
    if rows.loc[plain, "series"].nunique() > 1:
        rows.loc[plain, ["series", "color"]] = PLAIN, PLAIN_COLOR
    rows = rows.assign(sub_block=sub_block(rows))
    return rows.sort_values(["depth", "series", "seed", "sub_block"])[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw gain against sub-block: a row a gain, a column a depth, a line a series; log scale.

    table: COLUMNS. Bands go from the lowest to the highest seed.
    """
    styles = table_styles(table, "series")
    figure, grid = depth_panels(table, len(PANELS), 1.75)
    finite = table[np.isfinite(table["value"])]
    for (measure, unit), line in zip(PANELS.items(), grid, strict=True):
        for depth, axes in zip(drawn_depths(table), line, strict=True):
            here = finite[(finite["measure"] == measure) & (finite["depth"] == depth)]
            for series, rows in here.groupby("series"):
                every = max(1, depth // 4)
                draw_line(axes, over_seeds(rows, "sub_block"), styles[series], series, markevery=every)
        line[0].set_ylabel(unit)
        log_gains(line[0])
    for axes in grid[-1]:
        axes.set_xlabel("sub-block")
    legend_below(figure, legend_entries(styles))
    return figure


def final_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Average each gain after the last sub-block over seeds: a row a (series, depth), a column a measure."""
    last = table["sub_block"] == table.groupby("run")["sub_block"].transform("max")
    return table[last].pivot_table(
        index=["series", "depth"], columns="measure", values="value", aggfunc="mean"
    )


def caption(table: pd.DataFrame) -> str:
    """Define the gains and state their values after the last sub-block."""
    texts = []
    for series, by_depth in final_gains(table).groupby("series"):
        numbers = [
            f"{' / '.join(f'{gains[name]:.3g}' for name in PANELS)} ({depth} layers)"
            for (_, depth), gains in by_depth.iterrows()
        ]
        texts.append(f"{series} {', '.join(numbers)}")
    plain = table.loc[table["series"] == PLAIN, "label"].unique()
    joined = f"{PLAIN.capitalize()}: {listing(plain, 20)}, 1 by definition. " if len(plain) else ""
    return (
        "Gains of the product of the mixing matrices from the first sub-block up to and with this one (sub-block = "
        "2·layer, + 1 for the channel mixer), mean over tokens; Amax: largest absolute row or column sum; "
        f"{band_text(table)}. Below {ROUNDING:g} is rounding. After the last sub-block, Amax / largest / "
        f"smallest singular value: {'; '.join(texts)}. {joined}{left_out_text(table)}{provenance_text(table)}"
    )
