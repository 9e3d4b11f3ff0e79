"""Latency against length, and the length from which on a sparse model is faster than the dense one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.figure_entry import Entry
from analysis.files import NoData
from analysis.loading.results import Results
from analysis.loading.tables import read_bench
from analysis.plotting.axes import length_axis, plain_log_ticks
from analysis.plotting.style import INK, SeriesStyle, legend_below, new_figure, series_styles, styled

FIGURES = (
    Entry(
        "crossover",
        "Latency and crossover",
        needs=("bench.latency.csv",),
        section="Cost",
        place=30,
    ),
)

FILE = "latency.csv"
COLUMNS = (
    "suite",
    "model",
    "backend",
    "device",
    "tokens",
    "batch",
    "milliseconds_median",
    "milliseconds_low",
    "milliseconds_high",
    "peak_memory_bytes",
)
OPTIONAL = ("color",)
MARKED = 2
"""So many crossovers can be marked and read; of more the caption tells."""
DENSE = ("transformer", "dense", "baseline", "F", "attention")
"""Words for the dense model in a bench's column `model`, the first that is found: names of the preset, the pattern and
the mixer, and those that people give it. A table of times says nothing else of a model (it may come without runs, or
from elsewhere), so that only its name tells which one the others are compared with."""


def table(results: Results) -> pd.DataFrame:
    """Read the latency table that belongs to the results and add the colours of its models.

    Raises NoData where no latency.csv stands beside them.
    """
    path = results.bench(FILE)
    if path is None:
        raise NoData(f"unmeasured: no {FILE} beside these runs")
    return read(path, _colors(results.runs))


def _colors(runs: pd.DataFrame) -> dict[str, str]:
    """The colour of a model under every name that a bench may give it; the most specific name wins."""
    rows = runs.dropna(subset=["color"]).to_dict("records")
    return {row[name]: row["color"] for name in ("pattern", "preset", "name", "label") for row in rows}


def read(path: Path, colors: dict[str, str] | None = None) -> pd.DataFrame:
    """Read a bench CSV and select the suite, device and batch with the most points of two or more models.

    colors: by model, added as the column ``color``, so that a model has the colour it has in other figures.
    Raises NoData if columns are missing or if no two models were timed at the same two lengths.
    """
    rows = read_bench(path, COLUMNS, ("tokens", "batch", *COLUMNS[6:]))
    rows = rows[(rows["tokens"] > 0) & (rows["milliseconds_median"] > 0)]
    candidates = [
        group for _, group in rows.groupby(["suite", "device", "batch"], dropna=False) if _comparable(group)
    ]
    if not candidates:
        raise NoData(f"{path.name} has no two models timed at two lengths or more on one device")
    best = max(candidates, key=len).sort_values(["model", "backend", "tokens"])[list(COLUMNS)]
    return best.assign(color=best["model"].map(colors or {})).reset_index(drop=True)


def _comparable(group: pd.DataFrame) -> bool:
    return group["model"].nunique() > 1 and group["tokens"].nunique() > 1


def dense_model(models: list[str]) -> str:
    """Return the model that the others are compared with: one named in DENSE, else the first."""
    return next((model for name in DENSE for model in models if name in str(model).split()), models[0])


def is_dense(model: str) -> bool:
    """Return whether a word of a model's name is one of DENSE: whether it is a dense baseline."""
    return not set(str(model).split()).isdisjoint(DENSE)


def speedups(table: pd.DataFrame) -> pd.DataFrame:
    """Return dense latency over each other model's by tokens (the index), each at its fastest backend."""
    fastest = table.groupby(["tokens", "model"])["milliseconds_median"].min().unstack()
    dense = dense_model(list(fastest.columns))
    return fastest.drop(columns=dense).rdiv(fastest[dense], axis=0)


def crossover_tokens(speedup: pd.Series) -> float | None:
    """Return the length from which on the speed-up stays >= 1, interpolated in log-log; None if there is none.

    A model that is never slower crosses at the shortest length measured.
    """
    speedup = speedup.dropna().sort_index()
    below = np.flatnonzero(speedup.to_numpy() < 1)
    if len(speedup) == 0 or (len(below) and below[-1] == len(speedup) - 1):
        return None
    if not len(below):
        return float(speedup.index[0])
    last = below[-1]
    (x0, x1), (y0, y1) = np.log(speedup.index[last : last + 2]), np.log(speedup.iloc[last : last + 2])
    return float(np.exp(x0 - y0 * (x1 - x0) / (y1 - y0)))


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw latency against T (log-log) above and speed-up over the dense model below; crossovers are marked.

    table: COLUMNS and, optionally, OPTIONAL; a row per model, backend and length of one suite, device and
    batch size.
    """
    ratios, styles = speedups(table), _series_styles(table)
    figure, (latency, ratio) = new_figure(5.0 + 0.21 * len(styles), rows=2, sharex=True, height_ratios=(3, 2))
    for (model, backend), rows in table.groupby(["model", "backend"], sort=False, dropna=False):
        name = f"{model}, {backend}"
        _draw_latency(latency, rows, styles[name], name if table["backend"].nunique() > 1 else model)
    for model in ratios:
        series_style = next(
            series_style for name, series_style in styles.items() if name.startswith(f"{model}, ")
        )
        _draw_ratio(ratio, ratios[model].dropna(), series_style, model)
        if ratios.shape[1] <= MARKED:
            _mark(latency, ratio, crossover_tokens(ratios[model]), series_style)
    ratio.axhline(1, color=INK, linewidth=1)
    latency.set(yscale="log", ylabel="latency (ms)")
    plain_log_ticks(latency.yaxis)
    ratio.set_yscale("log", base=2)
    ratio.yaxis.set_minor_locator(NullLocator())
    plain_log_ticks(ratio.yaxis, base=2)
    ratio.set(ylabel="speed-up\nover dense (×)", xlabel="sequence length T (tokens)")
    length_axis(ratio, sorted(table["tokens"].unique()))
    legend_below(figure, [line for line in latency.get_lines() if not line.get_label().startswith("_")])
    return figure


def _series_styles(table: pd.DataFrame) -> dict[str, SeriesStyle]:
    """Models by colour (their own, else the palette's), a model's backends by shade, line and marker."""
    colors = (
        table.drop_duplicates("model").set_index("model").get("color", pd.Series(dtype="object")).dropna()
    )
    models = series_styles((str(model), colors.get(model)) for model in table["model"].unique())
    pairs = table[["model", "backend"]].drop_duplicates().itertuples(index=False)
    return series_styles((f"{pair.model}, {pair.backend}", models[str(pair.model)].color) for pair in pairs)


def _draw_latency(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle, label: str) -> None:
    median = rows["milliseconds_median"]
    low, high = rows["milliseconds_low"].fillna(median), rows["milliseconds_high"].fillna(median)
    axes.fill_between(rows["tokens"], low, high, color=series_style.color, alpha=0.2, linewidth=0)
    axes.plot(
        rows["tokens"],
        median,
        **series_style.line(),
        label=label,
    )


def _draw_ratio(axes: Axes, ratio: pd.Series, series_style: SeriesStyle, label: str) -> None:
    axes.plot(
        ratio.index,
        ratio,
        **series_style.line(),
        label=label,
    )


def _mark(latency: Axes, ratio: Axes, tokens: float | None, series_style: SeriesStyle) -> None:
    if tokens is None:
        return
    for axes in (latency, ratio):
        axes.axvline(tokens, color=series_style.color, linestyle=":", linewidth=1.2)
    place = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "color": series_style.color,
        "fontsize": 9,
    }
    latency.annotate(f"crossover ≈ {tokens:,.0f}", (tokens, 0.03), (5, 0), **place)


def caption(table: pd.DataFrame) -> str:
    """Name device, batch and suite, and give the crossover of each model."""
    first, ratios = table.iloc[0], speedups(table)
    sentences = []
    for model in ratios:
        tokens, final = crossover_tokens(ratios[model]), ratios[model].dropna()
        if final.empty:
            sentences.append(f"{model} shares no length with the dense model")
            continue
        length, gain = final.index[-1], final.iloc[-1]
        where = f"crossover at about {tokens:,.0f} tokens" if tokens else "no lasting crossover"
        sentences.append(f"{model}: {where}, {gain:.2f}× as fast at {length:,.0f}")
    dense = dense_model(sorted(table["model"].unique()))
    return (
        f"Median latency, band from low to high, on {first.device}, batch {first.batch:g} "
        f"(suite {first.suite}). "
        f"Dense model: {dense}. {'; '.join(sentences)}. The speed-up takes each model's fastest backend. "
        "Timings do not depend on seeds or training text."
    )
