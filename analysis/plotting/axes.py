"""Axes of lengths, layers, bytes and rows; lines with bands and means with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from analysis.plotting.style import SeriesStyle
from analysis.significance.intervals import estimate

TICKS = 8
WIDE = 1000.0
DENSE = (1.0, 2.0, 3.0, 5.0, 7.0)
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def draw_interval(
    axes: Axes, height: float, values: Iterable[float], series_style: SeriesStyle, label: str
) -> None:
    """Draw the mean of ``values`` over seeds as a dot, its 95 % interval as a line, a tick for each seed."""
    values = list(values)
    mean, half_width, n = estimate(values)
    if n > 1:
        axes.errorbar(mean, height, xerr=half_width, color=series_style.color, capsize=4, linewidth=1.8)
        axes.plot(values, [height] * n, "|", color=series_style.color, markersize=13, label="_seeds")
    axes.plot(
        mean, height, series_style.marker, color=series_style.color, markersize=8, zorder=4, label=label
    )


def row_axis(axes: Axes, count: int, labels: list[str] | None = None) -> None:
    """Set up a y axis of ``count`` labelled rows from the top, the first at height 0."""
    axes.set_yticks(range(count), labels or [""] * count)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="y", linestyle=":")
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.08)


def length_axis(axes: Axes, lengths: Iterable[float] = (), span: tuple[float, float] | None = None) -> None:
    """Set an x axis of sequence lengths to the base of two, at most TICKS of them written: 512, 4K.

    lengths: those to write. span: the lowest and highest length drawn; the axis ends there, and where no lengths are
    given the powers of two between are written, or even steps where they are fewer than two.
    """
    axes.set_xscale("log", base=2)
    if span:
        low, high = span
        axes.set_xlim(0.9 * low, 1.05 * high)
        lengths = lengths or two_or_more([2**power for power in range(31)], low, high, whole=True) or [high]
    lengths = sorted(lengths)
    step = -(-len(lengths) // TICKS)
    axes.xaxis.set_major_locator(FixedLocator(lengths[::-step][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_length))


def _length(value: float, _: object) -> str:
    return f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def whole_ticks(axis: Axis, most: int = 10) -> None:
    """Tick a linear axis at whole numbers alone, at most `most` intervals: layers, steps, ranks.

    A span of less than one, as of a model with one layer, has the one whole number in it.
    """
    axis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def layer_axis(axes: Axes, most: int = 7) -> None:
    """Label the x axis as that of layers, ticked at whole numbers alone; a channel mixer lies at a half between."""
    whole_ticks(axes.xaxis, most)
    axes.set_xlabel("layer (from 0)")


def plain_log_ticks(axis: Axis, multiples: tuple[float, ...] = (1.0, 2.0, 5.0), base: float = 10.0) -> None:
    """Tick a logarithmic axis with numbers that do not crowd: 20, not 2 × 10¹. Call it after drawing.

    Over less than a factor of WIDE the ticks are these multiples of powers of ten; where fewer than two of them are in
    sight, DENSE ones, or even steps. Over more they are powers of ten alone. To the base of two they are its powers.
    """
    low, high = sorted(axis.get_view_interval())
    if high < WIDE * low or base != 10:
        for subs in (multiples, DENSE) if base == 10 else ((1.0,),):
            locator = LogLocator(base, subs=subs)
            places = locator.tick_values(low, high)
            if sum(low <= place <= high for place in places) > 1:
                break
        else:
            locator = FixedLocator(two_or_more((), low, high))
        axis.set_major_locator(locator)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def two_or_more(places: Iterable[float], low: float, high: float, whole: bool = False) -> list[float]:
    """Return the places from low to high, or even steps where they are fewer than two: one number gives no scale."""
    inside = [place for place in places if low <= place <= high]
    if len(inside) > 1 or low == high:
        return inside
    return [place for place in MaxNLocator(4, integer=whole).tick_values(low, high) if low <= place <= high]


def byte_axis(axis: Axis, most: int = 8) -> None:
    """Tick an axis of bytes at powers of two with their unit, at most `most`; in even steps where two do not fit."""
    low, high = axis.get_view_interval()
    step = max(1, math.ceil(math.log2(high / low) / (most - 1)))
    places = [2**power for power in range(0, 60, step)]
    if sum(low <= place <= high for place in places) < 2:
        unit = 2 ** math.floor(math.log2(high - low) - 2)  # steps of which `bytes_text` writes whole
        places = [unit * place for place in two_or_more([], low / unit, high / unit, whole=True)]
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    axis.set_view_interval(low, high, ignore=True)


def bytes_text(value: float) -> str:
    """Format bytes as "512 KiB", in the largest unit that leaves at least 1."""
    power = next((power for power in reversed(range(len(UNITS))) if value >= 1024**power), 0)
    return f"{value / 1024**power:.4g} {UNITS[power]}"


def draw_line(axes: Axes, spread: pd.DataFrame, series_style: SeriesStyle, label: str, **options) -> None:
    """Draw the mean of `over_seeds` against its index, with a band from min to max."""
    x = spread.index.to_numpy("float64")
    low, high = spread["min"].to_numpy("float64"), spread["max"].to_numpy("float64")
    axes.fill_between(x, low, high, color=series_style.color, alpha=0.15, linewidth=0)
    style = {
        "linestyle": series_style.linestyle,
        "marker": series_style.marker,
        "markersize": 4,
        "linewidth": 1.5,
    }
    axes.plot(
        x, spread["mean"].to_numpy("float64"), color=series_style.color, label=label, **{**style, **options}
    )
