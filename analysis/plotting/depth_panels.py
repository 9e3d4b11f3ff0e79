"""Panels by depth: a column a depth, and one series for models that differ in depth alone."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plotting.axes import plain_log_ticks, whole_ticks
from analysis.plotting.style import panels

MOST = 3
"""So many columns have room for their numbers."""

ROUNDING = 1e-16
"""Singular values below this are rounding errors of fp64."""


def with_series(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `series`: the run's name where name and depth identify the setting, else its label.

    rows: with name, depth and label (`analysis.loading.probe_measures`).
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
