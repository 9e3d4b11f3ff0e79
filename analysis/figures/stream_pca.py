"""Principal components of the n residual streams: energy and error of the first r directions."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import NoData
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import deepest, draw_line, plain_log_ticks, whole_ticks, with_series
from analysis.plotting.style import (
    band_text,
    legend_below,
    legend_entries,
    panels,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "stream_pca",
        "Dimensions the streams use",
        needs=("measures.stream_energy", "measures.stream_error"),
        section="Residual streams",
        place=40,
        compares=True,
    ),
)

PANELS = {"stream_energy": "share of energy", "stream_error": "relative error"}
PLACES = ("after layer 0", "half way", "before the head")
COLUMNS = (
    *("run", "label", "series", "color", "depth", "seed", "training_set"),
    *("place", "layer", "rank", "measure", "value"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, place and rank r of each series' deepest model with several streams.

    Raises NoData where every probed model has one stream.
    """
    rows = select_axis(probe_measures(results, tuple(PANELS)), "rank").dropna(subset=["run"])
    rows = rows[rows["part"].isin(("mixer", "head")) & (rows.groupby("run")["end"].transform("max") > 1)]
    if rows.empty:
        raise NoData("every probed model has one residual stream: it has one direction")
    rows = deepest(with_series(rows))
    rows = pd.concat([rows[rows["layer"] == layer].assign(place=place) for place, layer in _layers(rows)])
    rows = rows.assign(rank=rows["end"].astype("int64"))
    return rows.sort_values(["series", "seed", "place", "rank"])[list(COLUMNS)].reset_index(drop=True)


def _layers(rows: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """Return each place with the layer, by row, whose input it is; after the last layer counts as one layer more."""
    depth = rows["depth"].astype("Int64")
    return list(zip(PLACES, (depth.clip(upper=1), (depth // 2).clip(lower=1), depth), strict=True))


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw energy above and error below (log scale) against r; a column a place. table: COLUMNS."""
    styles = table_styles(table, "series")
    figure, grid = panels(len(PANELS), len(PLACES), 1.95, sharex=True, sharey="row")
    for (measure, unit), line in zip(PANELS.items(), grid, strict=True):
        for place, axes in zip(PLACES, line, strict=True):
            here = table[(table["measure"] == measure) & (table["place"] == place)]
            if measure == "stream_error":
                here = here[here["rank"] < here.groupby("run")["rank"].transform("max")]
            for series, rows in here.groupby("series"):
                draw_line(axes, over_seeds(rows, "rank"), styles[series], series)
            whole_ticks(axes.xaxis)
        line[0].set_ylabel(f"{unit}\n(0 to 1)")
    for place, axes in zip(PLACES, grid[0], strict=True):
        axes.set_title(place)
    grid[1][0].set_yscale("log")
    plain_log_ticks(grid[1][0].yaxis)
    for axes in grid[-1]:
        axes.set_xlabel("directions r")
    legend_below(figure, legend_entries(styles))
    return figure


def caption(table: pd.DataFrame) -> str:
    """Define the directions and state the energy of the first one before the head."""
    last = table[
        (table["place"] == PLACES[-1]) & (table["rank"] == 1) & (table["measure"] == "stream_energy")
    ]
    sentences = [
        f"{series} {100 * share:.1f} %" for series, share in last.groupby("series")["value"].mean().items()
    ]
    return (
        "Streams x in R^n of all tokens and channels, rebuilt from their r leading principal directions (uncentred): "
        f"share of Σ‖x‖² kept, and √(1 − share), which is 0 with all n; {band_text(table)}. Each scheme at its "
        f"greatest depth. In one direction before the head: {', '.join(sentences)}. {provenance_text(table)}"
    )
