"""Axes and panels: axes of lengths, layers, bytes and rows, lines with bands, panels by depth and by task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from analysis.comparing.verdicts import levels_by_task
from analysis.files import listing
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    legend_below,
    legend_entries,
    panels,
    seeds_text,
    table_styles,
)
from analysis.statistics import estimate

TICKS = 8
WIDE = 1000.0
LONG = 28
"""Characters of a row's label that leave its axes half the figure's width."""

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
    axes.locator_params(axis="x", nbins=ticks_beside(labels or []))
    axes.margins(x=0.08)


def ticks_beside(labels: Iterable[str]) -> int:
    """Return how many ticks have room below rows with these labels, which take their width from the axes."""
    return 6 if max(map(len, labels), default=0) < LONG else 3


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
            places = LogLocator(base, subs=subs).tick_values(low, high)
            if len(inside := [place for place in places if low <= place <= high]) > 1:
                break
        else:
            inside = two_or_more((), low, high)
        # On a short axis LogLocator would leave out powers of ten, even all of them.
        every = -(-len(inside) // max(2, axis.get_tick_space()))
        axis.set_major_locator(FixedLocator(inside[::every]))
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


# Panels by depth: a column a depth, and one series for models that differ in depth alone.

MOST = 3
"""So many columns have room for their numbers."""

ROUNDING = 1e-16
"""Singular values below this are rounding errors of fp64."""


def with_series(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `series`: the run's name where name and depth identify the setting, else its label.

    rows: with name, depth and label (`analysis.loading.probes`).
    """
    ambiguous = rows.groupby(["name", "depth"])["label"].transform("nunique") > 1
    return rows.assign(series=rows["name"].where(~ambiguous, rows["label"]))


def sub_block(rows: pd.DataFrame) -> pd.Series:
    """Return the index of each row's sub-block: 2·layer, + 1 for the channel mixer."""
    return (2 * rows["layer"] + (rows["part"] == "channel")).astype("int64")


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the deepest model of each series."""
    return rows[rows["depth"] == rows.groupby("series")["depth"].transform("max")]


def drawn_depths(table: pd.DataFrame) -> list[int]:
    """Return the depths to draw, ascending: all, or the first, middle and last of more than MOST."""
    depths = sorted(int(depth) for depth in table["depth"].unique())
    return depths if len(depths) <= MOST else [depths[0], depths[len(depths) // 2], depths[-1]]


def depth_panels(table: pd.DataFrame, rows: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with rows × depths axes; a row shares its y scale, a column is titled with its depth."""
    depths = drawn_depths(table)
    figure, grid = panels(rows, len(depths), height, sharex="col", sharey="row")
    for axes, depth in zip(grid[0], depths, strict=True):
        axes.set_title(f"{depth} layer{'s' * (depth != 1)}")
    for axes in (axes for line in grid for axes in line):
        whole_ticks(axes.xaxis, 6 if len(depths) < MOST else 4)
    return figure, grid


def left_out_text(table: pd.DataFrame) -> str:
    """Return "Not drawn: 8 layers. ", or "" if all depths are drawn."""
    shown = drawn_depths(table)
    hidden = [str(int(depth)) for depth in sorted(table["depth"].unique()) if int(depth) not in shown]
    return f"Not drawn: {', '.join(hidden)} layers. " if hidden else ""


def log_gains(axes: Axes) -> None:
    """Set a logarithmic y axis from ROUNDING up, spanning a factor of four at least."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if low < ROUNDING < high:
        low = axes.set_ylim(bottom=ROUNDING)[0]
    if high < 4 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 2, middle * 2)
    plain_log_ticks(axes.yaxis, (1.0, 3.0))


# Panels by synthetic task, with the level of chance, and what their captions share.

SHARE = "right answers (share)"
LOSS = "loss (nats/answer)"
COLUMNS = 2
HEIGHT = 2.3
DASHES = {
    "copying": (
        ":",
        "Dotted: what copying from a fixed place, distance or order gets, no key read, where that is more",
    ),
    "memory": (
        "-.",
        "Dashed and dotted: what a memory of as much training gets, no rule known, where that is more",
    ),
}
"""Levels of tasks beside chance: their lines, and what a caption says of them."""

_TICKS = (0, 0.25, 0.5, 0.75, 1)


def task_panels(
    table: pd.DataFrame, legend: float, upwards: str = SHARE, level: str = "chance"
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure and a panel for each task of a table, a level dashed, and those of DASHES that it has.

    legend: inches that the legend needs; upwards: what is drawn, a share unless it is `LOSS`; level: the column of the
    table with the level.
    """
    levels = table.groupby("task", sort=False)[level].first().sort_index()
    known = levels_by_task(table)
    columns = min(COLUMNS, len(levels))
    rows = -(-len(levels) // columns)
    figure, grid = panels(rows, columns, HEIGHT)
    figure.set_figheight(rows * HEIGHT + legend)
    places = [axes for row in grid for axes in row]
    for axes, (task, height) in zip(places, levels.items(), strict=False):
        axes.axhline(height, color=INK, linestyle="--", linewidth=0.9, label="_chance")
        for word, (dash, _) in DASHES.items():
            if word in known[task]:
                axes.axhline(known[task][word], color=INK, linestyle=dash, linewidth=0.9, label=f"_{word}")
        axes.set_title(task)
        if upwards != LOSS:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    for row in grid:
        row[0].set_ylabel(upwards)
    for empty in places[len(levels) :]:
        empty.set_axis_off()
    return figure, dict(zip(levels.index, places, strict=False))


def model_panels(
    table: pd.DataFrame,
    curve: Callable[[pd.DataFrame], pd.DataFrame],
    upwards: str = SHARE,
    level: str = "chance",
) -> tuple[Figure, dict[str, Axes]]:
    """Return `task_panels` with a line and a band for each model, and the legend.

    curve: mean, min and max over seeds of the rows of a model and task, by what is drawn to the right.
    """
    styles = table_styles(table, "model")
    figure, places = task_panels(table, 0.21 * ((len(styles) + 1) // 2), upwards, level)
    for (task, model), rows in table.groupby(["task", "model"]):
        known = curve(rows)
        if len(known):
            draw_line(places[task], known, styles[model], model, markevery=max(1, len(known) // 8))
    legend_below(figure, legend_entries(styles))
    return figure, places


def chance_text(table: pd.DataFrame) -> str:
    """Explain the levels of tasks with their numbers: chance, dashed, and those of DASHES that get more."""
    known = levels_by_task(table)
    chances = _levels_text({task: levels["chance"] for task, levels in known.items()})
    sentences = [f"Dashed: chance, what one gets who sees the place and the token at hand alone ({chances})."]
    for word, (_, meaning) in DASHES.items():
        chances_by_task = {task: levels[word] for task, levels in known.items() if word in levels}
        sentences += [f"{meaning} ({_levels_text(chances_by_task)})."] * bool(chances_by_task)
    return " ".join(sentences)


def _levels_text(levels: Mapping[str, float]) -> str:
    return listing((f"{task} {share:.3g}" for task, share in levels.items()), 20)


def tasks_text(table: pd.DataFrame) -> str:
    """Name seeds and tasks with their options: "Seeds 0, 1. Tasks: mqar (length 32, pairs 4)."."""
    tasks = listing(table["training_set"].drop_duplicates().sort_values(), 20)
    return f"{seeds_text(table['seed'].dropna()).capitalize()}. Tasks: {tasks}."
