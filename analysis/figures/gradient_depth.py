"""Gradient norms by depth, with respect to the residual streams and to the parameters."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.probes import SUMMARY, probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import (
    depth_panels,
    draw_line,
    drawn_depths,
    layer_axis,
    left_out_text,
    log_gains,
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
        "gradient_depth",
        "Gradients over depth",
        needs=("measures.stream_gradient", "measures.parameter_gradient"),
        section="Residual streams",
        place=30,
        compares=True,
    ),
)

MEASURES = ("stream_gradient", "parameter_gradient")
PANELS = {
    ("stream_gradient", "streams"): "∂loss/∂streams",
    ("parameter_gradient", "mixer"): "∂loss/∂mixer",
    ("parameter_gradient", "channel"): "∂loss/∂channel mixer",
}
COLUMNS = (
    *("run", "label", "series", "color", "depth", "seed", "training_set"),
    *("measure", "of", "place", "value"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, measure and place (layer, + ½ for its channel mixer)."""
    rows = with_series(select_axis(probe_measures(results, MEASURES), SUMMARY).dropna(subset=["run"]))
    streams = rows["measure"] == "stream_gradient"
    half = 0.5 * (rows["part"] == "channel")
    rows = rows.assign(place=rows["layer"] + half.where(streams, 0), of=rows["part"].mask(streams, "streams"))
    return rows.sort_values(["depth", "series", "seed", "place"])[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw gradient norms: a row a gradient, a column a depth, a line a series; log scale. table: COLUMNS."""
    styles = table_styles(table, "series")
    shown = [key for key in PANELS if ((table["measure"] == key[0]) & (table["of"] == key[1])).any()]
    figure, grid = depth_panels(table, len(shown), 1.9)
    for (measure, of), line in zip(shown, grid, strict=True):
        for depth, axes in zip(drawn_depths(table), line, strict=True):
            here = table[(table["measure"] == measure) & (table["of"] == of) & (table["depth"] == depth)]
            every = max(1, here["place"].nunique() // 8)
            for series, rows in here.groupby("series"):
                draw_line(axes, over_seeds(rows, "place"), styles[series], series, markevery=every)
        line[0].set_ylabel(f"‖{PANELS[measure, of]}‖\n(nats/token per unit)", fontsize=8.5)
        log_gains(line[0])
    for axes in grid[-1]:
        layer_axis(axes)
    legend_below(figure, legend_entries(styles))
    return figure


def first_to_last(table: pd.DataFrame) -> pd.Series:
    """Return by (series, depth) the stream gradient before the first sub-block over that after the last."""
    streams = table[table["of"] == "streams"].sort_values("place")
    ends = streams.groupby(["series", "depth", "run"])["value"].agg(["first", "last"])
    return (ends["first"] / ends["last"]).groupby(["series", "depth"]).mean()


def caption(table: pd.DataFrame) -> str:
    """Define the gradients, and give their growth from the last layer to the first."""
    sentences = []
    for series, ratios in first_to_last(table).groupby("series"):
        sentences.append(
            f"{series} {', '.join(f'{ratio:.3g} ({depth} layers)' for (_, depth), ratio in ratios.items())}"
        )
    growth = (
        f"Stream gradient before the first sub-block over that at the end: {'; '.join(sentences)}. "
        if sentences
        else ""
    )
    return (
        "Norms of the gradient of the mean loss on held-out text, with respect to all streams of the batch before a "
        "sub-block (mixer at the layer, channel mixer half a layer later, last point: before the head) and to the "
        "parameters of each mixer and channel mixer, its norm and residual coefficients included; "
        f"{band_text(table)}. {growth}{left_out_text(table)}{provenance_text(table)}"
    )
