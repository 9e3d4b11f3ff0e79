"""Figures of job=bench tables with many cases: time against sequence length, a panel a case."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plotting.axes import length_axis, plain_log_ticks
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    figure_note,
    legend_below,
    legend_entry,
    panels,
    save,
    series_styles,
    styled,
)

# Suite -> a figure for each value of one column, a panel for each of the second, a line for each of the third.
LAYOUTS = {"kernels": ("mode", "model", "backend"), "models": ("recompute", "mode", "model")}
COLUMNS = 2
HEIGHT = 1.75


def draw_table(path: Path) -> list[Path]:
    """Draw a suite's CSV file as SUITE_WHICH.svg and .png in its folder; nothing for suites without figure or times.

    Rows without a time (refused, or out of memory) leave gaps.
    """
    layout = LAYOUTS.get(path.stem)
    if layout is None or not path.is_file():
        return []
    rows = pd.read_csv(path)
    rows = rows[rows["milliseconds_median"] > 0].fillna(dict.fromkeys(layout, ""))
    written = []
    for which, part in rows.groupby(layout[0], sort=False):
        name = "_".join(x for x in (path.stem, str(which).replace("+", "_")) if x)
        written += save(draw(part, *layout[1:]), path.with_name(name))
    return written


@styled
def draw(rows: pd.DataFrame, panel: str, line: str) -> Figure:
    """Draw milliseconds against tokens (log-log), with the lowest and highest repetition as a band."""
    names = list(dict.fromkeys(rows[panel]))
    styles = series_styles((str(name), None) for name in rows[line].unique())
    figure, grid = panels(-(-len(names) // COLUMNS), min(COLUMNS, len(names)), HEIGHT)
    axes = [one for row in grid for one in row]
    for place, name in zip(axes, names, strict=False):
        _draw_panel(place, rows[rows[panel] == name], line, styles)
        place.set_title(name, fontsize=8, color=INK)
    for empty in axes[len(names) :]:
        empty.set_axis_off()
    for row in grid:
        row[0].set_ylabel("ms", fontsize=8)
    for place in axes[max(0, len(names) - COLUMNS) : len(names)]:
        place.set_xlabel("tokens of a sequence", fontsize=8)
    figure_note(figure, measured_on(rows))
    legend_below(
        figure, [legend_entry(name, series_style) for name, series_style in styles.items()], columns=3
    )
    return figure


def measured_on(rows: pd.DataFrame) -> str:
    """The machines, precisions and versions of torch of a table's rows; nothing for a table that names none."""
    columns = [rows[name].dropna() for name in ("machine", "precision", "torch") if name in rows]
    named = [" and ".join(str(x) for x in column.unique()) for column in columns if len(column)]
    return ", ".join(f"torch {x}" if i == 2 else x for i, x in enumerate(named))


def _draw_panel(axes: Axes, rows: pd.DataFrame, line: str, styles: dict[str, SeriesStyle]) -> None:
    for name, part in rows.groupby(line, sort=False):
        part, series_style = part.sort_values("tokens"), styles[str(name)]
        low, high = part["milliseconds_low"], part["milliseconds_high"]
        axes.fill_between(part["tokens"], low, high, color=series_style.color, alpha=0.2, linewidth=0)
        style = {
            "color": series_style.color,
            "linestyle": series_style.linestyle,
            "marker": series_style.marker,
        }
        axes.plot(part["tokens"], part["milliseconds_median"], markersize=3, linewidth=1.3, **style)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    axes.tick_params(labelsize=7)
    length_axis(axes, sorted(rows["tokens"].unique()))
