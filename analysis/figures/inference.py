"""Decoding and reading prompts against the length of the context, beside the same weights in transformers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figure_entry import Entry
from analysis.files import NoData, listing
from analysis.loading.results import Results
from analysis.loading.tables import read_bench
from analysis.plotting.axes import byte_axis, length_axis, plain_log_ticks
from analysis.plotting.style import SeriesStyle, legend_below, new_figure, save, series_styles, styled

FILE = "inference.csv"
BATCHES = (1, 8)


def _entry(batch: int, name: str, title: str) -> Entry:
    needs = (f"bench.{FILE}",)
    return Entry(name, title, needs, options={"batch": batch}, section="Cost", place=40 + batch)


FIGURES = (
    _entry(1, "inference", "Decoding and prefill"),
    _entry(8, "inference_batch_8", "Decoding and prefill, eight sequences"),
)

COLUMNS = (
    *("model", "color", "backend", "peer", "mode", "tokens", "batch", "repeats"),
    *("milliseconds_median", "milliseconds_low", "milliseconds_high", "tokens_per_second", "state_bytes"),
    *("ratio_transformer", "device", "machine", "precision", "d_model", "depth", "note"),
)
NUMBERS = ("tokens", "batch", "repeats", *COLUMNS[8:14], "d_model", "depth")
PANELS = (
    ("decode", "milliseconds_median", "decoding: time a step (ms)"),
    ("decode", "state_bytes", "decode state of all sequences"),
    ("prefill", "tokens_per_second", "prefill (tokens/s)"),
)
"""Mode, column and title of each panel."""
PEER = "transformers"
CLAIMED = 1024
"""The context of which the caption tells the ratios."""


def table(results: Results, batch: int) -> pd.DataFrame:
    """Read the table of suite=inference beside the results: rows of one batch size on one machine.

    Raises NoData where no such table stands beside them.
    """
    path = results.bench(FILE)
    if path is None:
        raise NoData(f"unmeasured: no {FILE} beside these runs")
    return read(path, batch)


def read(path: Path, batch: int) -> pd.DataFrame:
    """Read a table of suite=inference; of several machines and precisions, the one with the most rows.

    Raises NoData where columns are missing or nothing was timed at this batch size.
    """
    rows = read_bench(path, COLUMNS, NUMBERS)
    groups = [group for _, group in rows[rows["batch"] == batch].groupby(["machine", "precision"])]
    best = max(groups, key=len, default=rows[:0])
    if not (best["milliseconds_median"] > 0).any():
        raise NoData(f"{path.name} has no times of {batch} sequence(s)")
    return best[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame, batch: int) -> Figure:
    """Draw time a step, decode state and prompt tokens a second (log-log); dashed: the same weights in transformers."""
    timed = table[table["milliseconds_median"] > 0]
    models = timed.drop_duplicates("model")
    styles = series_styles(zip(models["model"], models["color"], strict=True))
    series = list(timed.groupby(["model", "backend"], sort=False))
    entries = [
        Line2D([], [], label=_label(model, backend, rows["peer"]), **_line_style(styles[model], backend))
        for (model, backend), rows in series
    ]
    figure, axes = new_figure(7.2 + 0.21 * -(-len(entries) // 3), rows=len(PANELS), sharex=True)
    for place, (mode, column, title) in zip(axes, PANELS, strict=True):
        for (model, backend), rows in series:
            rows = rows[rows["mode"] == mode].sort_values("tokens")
            _draw_series(place, rows, column, _line_style(styles[model], backend))
        _finish(place, column, title)
    length_axis(axes[-1], sorted(timed["tokens"].unique()))
    axes[-1].set_xlabel("context (tokens)")
    legend_below(figure, entries, columns=3)
    return figure


def _label(model: str, backend: str, peer: pd.Series) -> str:
    """The model's name, or what transformers calls its equal."""
    return f"{peer.iloc[0]}, {PEER}" if backend == PEER else model


def _line_style(series_style: SeriesStyle, backend: str) -> dict:
    """Ours solid with filled markers, those of transformers dashed with open ones."""
    theirs = backend == PEER
    return {
        "color": series_style.color,
        "marker": series_style.marker,
        "linestyle": "--" if theirs else "-",
        "markerfacecolor": "white" if theirs else series_style.color,
        "markersize": 4,
        "linewidth": 1.3,
    }


def _draw_series(axes: Axes, rows: pd.DataFrame, column: str, look: dict) -> None:
    if column == "milliseconds_median":
        low, high = rows["milliseconds_low"], rows["milliseconds_high"]
        axes.fill_between(rows["tokens"], low, high, color=look["color"], alpha=0.1, linewidth=0)
    axes.plot(rows["tokens"], rows[column], **look)


def _finish(axes: Axes, column: str, title: str) -> None:
    axes.set_yscale("log")
    axes.autoscale_view()
    if column == "state_bytes":
        byte_axis(axes.yaxis)
    else:
        plain_log_ticks(axes.yaxis)
    axes.set_title(title)


def draw_file(path: Path) -> list[Path]:
    """Draw a table of suite=inference as NAME.svg and .png beside it, NAME of FIGURES; nothing for other tables."""
    if path.name != FILE or not path.is_file():
        return []
    written = []
    for entry in FIGURES:
        try:
            rows = read(path, **entry.options)
        except NoData:
            continue
        written += save(draw(rows, **entry.options), path.with_name(entry.name))
    return written


def caption(table: pd.DataFrame, batch: int) -> str:
    """Name machine, size and repetitions, what was compared, and what was not measured."""
    timed = table[table["milliseconds_median"] > 0]
    first, ours = timed.iloc[0], timed[timed["backend"] != PEER]
    sizes = ours[["d_model", "depth"]].drop_duplicates()
    size = f", width {first.d_model:g}, {first.depth:g} layers" if len(sizes) == 1 else ""
    low, high = timed["repeats"].min(), timed["repeats"].max()
    repeats = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    peers = " Dashed: the same weights in transformers, in turns with ours." if len(ours) < len(timed) else ""
    return (
        f"{batch} sequence{'s' * (batch > 1)} on {first.machine}, {first.precision}{size}. Median of {repeats} "
        "repetitions (for decoding, each is the mean of a few consecutive steps); band: fastest to slowest."
        f"{peers} {_ratios(ours)}{_left_out(table)}"
    )


def _ratios(ours: pd.DataFrame) -> str:
    """Say how long a step takes beside the plain transformer's, at CLAIMED tokens or at the shortest context."""
    at = CLAIMED if (ours["tokens"] == CLAIMED).any() else ours["tokens"].min()
    rows = ours[(ours["tokens"] == at) & (ours["mode"] == "decode")].dropna(subset=["ratio_transformer"])
    if rows.empty:
        return ""
    ratios = [f"{row.model} {1 / row.ratio_transformer:.2f}" for row in rows.itertuples()]
    return (
        f"Time of a step after {at:,.0f} tokens, divided by the plain transformer's: {listing(ratios, 40)}. "
    )


def _left_out(table: pd.DataFrame) -> str:
    ours = table[(table["backend"] != PEER) & table["note"].notna()]
    names = [f"{row.model} ({row.mode}, {row.tokens:,.0f})" for row in ours.itertuples()]
    return f"Not measured, for time or memory: {listing(names, 40)}." if names else ""
