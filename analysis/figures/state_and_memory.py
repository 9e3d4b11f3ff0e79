"""Decode state against text length, and peak memory of training."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import TEXT, Entry
from analysis.figures.crossover import is_dense
from analysis.files import NoData, listing
from analysis.loading.probes import sweeps_as_models
from analysis.loading.results import Results
from analysis.plotting.axes import byte_axis, bytes_text, length_axis, row_axis
from analysis.plotting.style import (
    SeriesStyle,
    legend_below,
    legend_entry,
    new_figure,
    provenance_text,
    styled,
    table_styles,
)

FIGURES = (
    Entry(
        "state_and_memory",
        "Decode state and training memory",
        needs=("runs.state_bytes_131072",),
        section="Cost",
        place=20,
        of=TEXT,
    ),
)

LENGTHS = (1024, 8192, 131072)
STATES = tuple(f"state_bytes_{length}" for length in LENGTHS)
COLUMNS = ("run", "model", "color", "seed", *STATES, "peak_memory_bytes", "machine", "training_set")
MEBIBYTE = 2**20


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run whose decode state is known at all three lengths.

    Raises NoData where there is none.
    """
    runs = sweeps_as_models(results.runs).dropna(subset=list(STATES))
    if runs.empty:
        raise NoData("no run recorded its decode state at 1,024, 8,192 and 131,072 tokens")
    frame = runs.assign(machine=runs["gpu"].fillna(runs["cpu"]))[list(COLUMNS)]
    numbers = dict.fromkeys((*STATES, "peak_memory_bytes"), "float64")
    return frame.astype(numbers).reset_index(drop=True)


def states(table: pd.DataFrame) -> pd.DataFrame:
    """Return bytes by model (the index, the smallest at the longest text first) and length (the columns)."""
    means = table.groupby("model")[list(STATES)].mean().sort_values([*STATES[::-1]])
    return means.set_axis(LENGTHS, axis=1)


def crossing(state: pd.Series, dense: pd.Series) -> float | None:
    """Return the first length from which on ``state`` stays below ``dense``, linear in T between lengths, or None.

    A state that is smaller at every length crosses at the shortest.
    """
    gap = (state - dense).to_numpy(dtype="float64")
    if gap[-1] >= 0:
        return None
    above = np.flatnonzero(gap >= 0)
    if not len(above):
        return float(LENGTHS[0])
    last = above[-1]
    share = gap[last] / (gap[last] - gap[last + 1])
    return float(LENGTHS[last] + share * (LENGTHS[last + 1] - LENGTHS[last]))


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw decode state of one sequence against T (log-log) above, peak memory of training below."""
    means = states(table)
    styles = table_styles(table, "model")
    measured = [
        model for model in means.index if table.loc[table["model"] == model, "peak_memory_bytes"].any()
    ]
    height = 0.5 + 0.24 * len(measured)
    figure, (above, *below) = new_figure(
        3.9 + height, rows=2 if measured else 1, height_ratios=(3, height)[: 1 + bool(measured)]
    )
    _draw_states(above, means, styles)
    for axes in below:
        _draw_memory(axes, table, measured, styles)
    if set(measured) != set(means.index):
        legend_below(figure, [legend_entry(model, styles[model]) for model in means.index])
    return figure


def _draw_states(axes: Axes, means: pd.DataFrame, styles: dict[str, SeriesStyle]) -> None:
    between = np.geomspace(LENGTHS[0], LENGTHS[-1], 65)
    dense = next((model for model in means.index if is_dense(model)), None)
    for model, state in means.iterrows():
        series_style = styles[model]
        line = {"color": series_style.color, "linestyle": series_style.linestyle, "label": "_between"}
        axes.plot(between, np.interp(between, LENGTHS, state), **line)
        axes.plot(LENGTHS, state, series_style.marker, color=series_style.color, label=model)
        tokens = crossing(state, means.loc[dense]) if dense not in (None, model) else None
        if tokens and tokens > LENGTHS[0]:
            axes.plot(
                tokens, np.interp(tokens, LENGTHS, state), "o", label="_crossing", **_ring(series_style)
            )
    axes.set(yscale="log", ylabel="decode state\nof one sequence", xlabel="text so far T (tokens)")
    axes.set_title("decode state")
    length_axis(axes, list(LENGTHS))
    byte_axis(axes.yaxis)


def _ring(series_style: SeriesStyle) -> dict:
    return {"markersize": 12, "markerfacecolor": "none", "markeredgewidth": 1.5, "color": series_style.color}


def _draw_memory(axes: Axes, table: pd.DataFrame, models: list[str], styles: dict[str, SeriesStyle]) -> None:
    for height, model in enumerate(models):
        values = table.loc[table["model"] == model, "peak_memory_bytes"].dropna() / MEBIBYTE
        series_style = styles[model]
        axes.plot(values, [height] * len(values), "|", color=series_style.color, markersize=13, label="_runs")
        axes.plot(
            values.max(), height, series_style.marker, color=series_style.color, markersize=8, label=model
        )
    row_axis(axes, len(models), models)
    axes.set_title("training; symbols as above")
    axes.set_xlabel("peak memory of a training run (MiB)")


def caption(table: pd.DataFrame) -> str:
    """Give the lengths where states fall below the dense model's, and explain the memory."""
    means = states(table)
    dense = next((model for model in means.index if is_dense(model)), None)
    sentence = f"{_crossings(means, dense)} " if dense else ""
    machines = listing(table["machine"].dropna().unique())
    memory = (
        f"Peak memory: of the whole training process on {machines} (of the GPU where there is one); symbols: the "
        "highest run, ticks: the single ones. "
        if table["peak_memory_bytes"].notna().any()
        else "Peak memory was not recorded. "
    )
    return (
        "Decode state of one sequence in the weights' type, computed from the built model at the lengths marked, "
        f"linear in T between them. {sentence}{memory}{provenance_text(table)}"
    )


def _crossings(means: pd.DataFrame, dense: str) -> str:
    tokens = {model: crossing(state, means.loc[dense]) for model, state in means.iterrows() if model != dense}
    smaller = [model for model, start in tokens.items() if start == LENGTHS[0]]
    later = [
        f"{model} from about {start:,.0f} tokens on"
        for model, start in tokens.items()
        if start and model not in smaller
    ]
    never = [model for model, start in tokens.items() if start is None]
    parts = [f"{dense} needs {bytes_text(means.loc[dense, LENGTHS[-1]])} at 131,072"]
    parts += [f"less than {dense} at all three lengths: {listing(smaller, 40)}"] if smaller else []
    parts += [f"less later (ringed): {listing(later, 40)}"] if later else []
    parts += [f"never less: {listing(never, 40)}"] if never else []
    return "; ".join(parts) + "."
