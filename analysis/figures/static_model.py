"""Operations compiled for a GPU that was not there: modelled times of ours and of peers, and their ratios."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figure_entry import Entry
from analysis.files import NoData, listing
from analysis.loading.results import Results
from analysis.loading.tables import read_bench
from analysis.plotting.axes import plain_log_ticks, row_axis, two_or_more
from analysis.plotting.style import INK, PALETTE, figure_note, legend_below, new_figure, save, styled

FILE = "static.csv"
FIGURES = (
    Entry(
        "static",
        "Kernels compiled for a GPU, beside other libraries' (model, not measured)",
        needs=(f"bench.{FILE}",),
        section="Cost",
        place=35,
    ),
)
COLUMNS = (
    *("kind", "model", "backend", "mode", "target", "tokens", "precision", "version", "compiler", "launches"),
    *("modelled_milliseconds", "roofline_milliseconds", "peer", "ratio", "ratio_low", "ratio_high"),
    *("measured_milliseconds", "unknown_loops", "batch"),
)
NUMBERS = ("tokens", "launches", *COLUMNS[10:12], *COLUMNS[13:])
OURS = "triton"
RATIO_TICKS = (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)
MARKERS = ("o", "s", "D", "^")
APART = 0.3
"""Between the lines on which libraries stand, so that equal times do not hide each other."""


def table(results: Results) -> pd.DataFrame:
    """Read the table of suite=static beside the results. Raises NoData where no such table stands there."""
    path = results.bench(FILE)
    if path is None:
        raise NoData(f"not modelled: no {FILE} beside these runs (job=bench suite=static)")
    return read(path)


def read(path: Path) -> pd.DataFrame:
    """Read a table of suite=static: rows with a time, at the length that most have, or of one token.

    Raises NoData where columns are missing or nothing was modelled.
    """
    rows = read_bench(path, COLUMNS, NUMBERS)
    rows = rows[rows["modelled_milliseconds"] > 0]
    if rows.empty:
        raise NoData(f"{path.name} has no times")
    rows = rows[rows["tokens"].isin([rows["tokens"].mode().max(), 1])]
    return rows[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw modelled times (log) above, the peer's over ours below, a line an operation and way.

    Bars of ratios: the model's error. Hollow symbols: a time that is a lower bound, loops of unknown length taken once.
    Crosses: measured times, where there are any.
    """
    lines = [f"{model}, {mode}" for model, mode in _lines(table)]
    height = 0.24 * len(lines)
    figure, (times, ratios) = new_figure(2 * height + 2.4, rows=2)
    backends = sorted(table["backend"].unique(), key=lambda name: (name != OURS, name))
    entries = []
    for place, backend in enumerate(backends):
        look = {"marker": MARKERS[place % len(MARKERS)], "color": PALETTE[place % len(PALETTE)]}
        shift = APART * (place - (len(backends) - 1) / 2)
        _draw_times(times, table[table["backend"] == backend], lines, shift, look)
        entries.append(Line2D([], [], linestyle="none", label=_label(table, backend), **look))
    ours = table[table["backend"] == OURS]
    least = ours.dropna(subset=["roofline_milliseconds"])
    times.plot(least["roofline_milliseconds"], _heights(least, lines), "|", color=INK, markersize=11)
    entries.append(Line2D([], [], linestyle="none", marker="|", markersize=11, color=INK, label="roofline"))
    _draw_ratios(ratios, ours.dropna(subset=["ratio"]), lines)
    for axes in (times, ratios):
        row_axis(axes, len(lines), lines)
    times.set(xscale="log", xlabel=f"modelled ms on {table['target'].iloc[0]}")
    plain_log_ticks(times.xaxis)
    ratios.set_xscale("log", base=2)
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ratios.xaxis.set_major_locator(FixedLocator(two_or_more(RATIO_TICKS, *ratios.get_xlim())))
    ratios.xaxis.set_minor_locator(NullLocator())
    ratios.set_xlabel("peer's time over ours (above 1: ours wins)")
    legend_below(figure, entries, columns=3)
    figure_note(figure, table["kind"].iloc[0])
    return figure


def _lines(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Operation and way of each line, in the table's order."""
    return list(table[["model", "mode"]].drop_duplicates().itertuples(index=False, name=None))


def _heights(rows: pd.DataFrame, lines: list[str]) -> list[int]:
    return [lines.index(f"{row.model}, {row.mode}") for row in rows.itertuples()]


def _label(table: pd.DataFrame, backend: str) -> str:
    versions = table.loc[table["backend"] == backend, "version"].dropna()
    return "ours" if backend == OURS else str(versions.iloc[0] if len(versions) else backend)


def _draw_times(axes: Axes, rows: pd.DataFrame, lines: list[str], shift: float, look: dict) -> None:
    for whole, part in rows.groupby(rows["unknown_loops"].fillna(0) == 0):
        face = look["color"] if whole else "white"
        heights = [height + shift for height in _heights(part, lines)]
        axes.plot(part["modelled_milliseconds"], heights, linestyle="none", markerfacecolor=face, **look)
    timed = rows.dropna(subset=["measured_milliseconds"])
    heights = [height + shift for height in _heights(timed, lines)]
    axes.plot(timed["measured_milliseconds"], heights, "x", color=look["color"])


def _draw_ratios(axes: Axes, rows: pd.DataFrame, lines: list[str]) -> None:
    heights = _heights(rows, lines)
    axes.axvline(1, color=INK, linewidth=1)
    axes.hlines(heights, rows["ratio_low"], rows["ratio_high"], color=PALETTE[0], linewidth=1.6)
    axes.plot(rows["ratio"], heights, MARKERS[0], color=PALETTE[0])


def caption(table: pd.DataFrame) -> str:
    """Say that it is a model, of what, and give the ratios and what is not known whole."""
    first = table.iloc[0]
    ratios = [
        f"{row.model} {row.mode} {row.ratio:.2f}" for row in table.dropna(subset=["ratio"]).itertuples()
    ]
    told = (
        f"Peer's time over ours: {listing(ratios, 40)}. " if ratios else "No peer was installed: ours alone. "
    )
    bounds = table[table["unknown_loops"] > 0]
    unknown = [f"{row.model} {row.mode} ({_label(table, row.backend)})" for row in bounds.itertuples()]
    hollow = (
        f" Hollow, lower bounds, with loops of unknown length: {listing(unknown, 40)}." if unknown else ""
    )
    steps = table.loc[table["tokens"] == 1, "batch"]
    decoding = f" (decoding: one token of each of {steps.iloc[0]:g} sequences)" if len(steps) else ""
    times = (
        "Crosses: measured."
        if table["measured_milliseconds"].notna().any()
        else "Nothing of it was measured."
    )
    return (
        f"{str(first.kind).capitalize()}: kernels compiled by {first.compiler} for {first.target} without one, "
        f"{table['tokens'].max():,.0f} tokens{decoding} in {first.precision}; times from counts of instructions, "
        f"bytes and products, each kernel in its best configuration. Bars: the model's error. {told}{times}{hollow} "
        "Times do not depend on seeds or training text."
    )


def draw_file(path: Path) -> list[Path]:
    """Draw a table of suite=static as static.svg and .png beside it; nothing for other tables, or without times."""
    if path.name != FILE or not path.is_file():
        return []
    try:
        return save(draw(read(path)), path.with_suffix(""))
    except NoData:
        return []
