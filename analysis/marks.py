"""Marks that several figures share: a mean with its interval, and axes of lengths and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.statistics import estimate
from analysis.style import Look

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def dot(axes: Axes, height: float, values: Iterable[float], look: Look, label: str) -> None:
    """Mean of ``values`` over seeds as a dot in a row, its 95 % interval as a line, a tick for each seed."""
    values = list(values)
    mean, half_width, n = estimate(values)
    if n > 1:
        axes.errorbar(mean, height, xerr=half_width, color=look.color, capsize=4, linewidth=1.8)
        axes.plot(values, [height] * n, "|", color=look.color, markersize=13, label="_seeds")
    axes.plot(mean, height, look.marker, color=look.color, markersize=8, zorder=4, label=label)


def rows(axes: Axes, count: int, labels: list[str] | None = None) -> None:
    """``count`` rows from the top, the first at height 0."""
    axes.set_yticks(range(count), labels or [""] * count)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="y", linestyle=":")
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.08)


def handle(label: str, look: Look, **options) -> Line2D:
    """A legend's entry for a series."""
    style = {"linestyle": look.linestyle, "markersize": 5, **options}
    return Line2D([], [], color=look.color, marker=look.marker, label=label, **style)


def length_axis(axes: Axes, lengths: list[float]) -> None:
    """Sequence lengths to the base of two, at most eight of them named."""
    axes.set_xscale("log", base=2)
    step = -(-len(lengths) // 8)
    axes.xaxis.set_major_locator(FixedLocator(lengths[::-step][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:g}"
        )
    )


def byte_axis(axis: Axis) -> None:
    """At most eight ticks, at powers of two, written with their unit."""
    low, high = axis.get_view_interval()
    step = max(1, math.ceil(math.log2(high / low) / 7))
    axis.set_major_locator(FixedLocator([2**power for power in range(0, 60, step)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    axis.set_view_interval(low, high, ignore=True)


def bytes_text(value: float) -> str:
    """ "512 KiB": in the largest unit that leaves at least 1."""
    power = next((power for power in reversed(range(len(UNITS))) if value >= 1024**power), 0)
    return f"{value / 1024**power:.4g} {UNITS[power]}"
