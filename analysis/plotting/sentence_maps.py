"""Attention maps of one sentence, queries down and keys across: a row a model, a column a layer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from analysis.files import NoData
from analysis.loading.probes import JOINED_COLUMNS
from analysis.loading.results import Results, advice
from analysis.plotting.style import heat_map, panels

# Tokens as labels of an axis.

LONGEST_LABEL = 9
SPACE = "␣"
SIGNS = {"\n": "⏎", "\t": "→"}


@lru_cache
def _known() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def token_label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Format a token as a tick label: outer spaces and line ends as signs, cut to ``longest``.

    " a" and "a" are different tokens, hence the signs. Characters that the figures' font lacks become □.
    """
    shown = "".join(SIGNS.get(sign, sign) for sign in text)
    before, after = (len(shown) - len(bare) for bare in (shown.lstrip(" "), shown.rstrip(" ")))
    middle = shown.strip(" ")
    shown = SPACE * before + middle + SPACE * after if middle else SPACE * before
    shown = "".join(sign if ord(sign) in _known() else "□" for sign in shown)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


LONGEST = 64
"""Tokens of the sentence that are drawn: more would be finer than a line of the page."""

MODELS = 12
"""Models whose maps are drawn at most, those of the lowest validation loss: a row of maps each."""

NAMED = 13
"""So many tokens have room for their text along an axis."""

COLUMNS = (
    "run",
    "label",
    "color",
    "seed",
    "training_set",
    "layer",
    "place",
    "heads",
    "query",
    "key",
    "weight",
    "text",
    "given",
)
PLACES = ("first", "middle", "last")


def sentence_maps(results: Results, kind: str) -> pd.DataFrame:
    """Return maps of a kind for the first, middle and last layer that has one, of the lowest seed of MODELS models.

    COLUMNS without `heads`, and `head`; text: the query's token; given: the sentence, if it was given.
    Raises NoData if no run has such maps.
    """
    maps = results.table("maps")
    maps = maps[(maps["kind"] == kind) & (maps["query"] < LONGEST) & (maps["key"] < LONGEST)]
    if maps.empty:
        raise NoData(f"no run has {kind} maps in probes/maps.parquet; {advice(results)}")
    shown = results.runs.merge(maps[["experiment", "run"]].drop_duplicates())
    shown = shown.sort_values("seed", kind="stable").drop_duplicates("label")
    best = shown["validation_loss"].sort_values(kind="stable").index[:MODELS]
    shown = shown[shown.index.isin(best)][list(JOINED_COLUMNS)]
    maps = maps.merge(shown, on=["experiment", "run"])
    maps = pd.concat([_layers(rows) for _, rows in maps.groupby("label")], ignore_index=True)
    texts = results.table("sentence")[["experiment", "run", "position", "text", "given"]]
    return maps.merge(
        texts, how="left", left_on=["experiment", "run", "query"], right_on=["experiment", "run", "position"]
    )


def models_text(table: pd.DataFrame) -> str:
    """Say which runs a figure of maps draws, with a full stop."""
    most = table["label"].nunique() == MODELS
    return "One run a model, the lowest seed" + (
        f", of at most {MODELS} models, those of the lowest validation loss." if most else "."
    )


def _layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Select at most three layers of one run; the column of places says which of PLACES each is."""
    layers = sorted(rows["layer"].unique())
    chosen = dict(zip(PLACES, (layers[0], layers[len(layers) // 2], layers[-1]), strict=True))
    places = {layer: place for place, layer in reversed(chosen.items())}
    return rows[rows["layer"].isin(places)].assign(place=lambda kept: kept["layer"].map(places))


def matrix(rows: pd.DataFrame, length: int, floor: float) -> np.ndarray:
    """Return one map as [length, length] weights, query by key, at least floor; future keys are NaN."""
    values = np.full((length, length), floor)
    values[rows["query"].to_numpy(int), rows["key"].to_numpy(int)] = np.maximum(rows["weight"], floor)
    values[np.triu_indices(length, 1)] = np.nan
    return values


def draw_maps(table: pd.DataFrame, norm: Normalize, unit: str) -> Figure:
    """Draw all maps of the table on one colour scale; tokens label the axes where there is room.

    table: COLUMNS. norm: with a LogNorm, weights that are absent or below vmin are drawn as vmin.
    """
    labels, length = list(table["label"].unique()), int(table["query"].max()) + 1
    places = [place for place in PLACES if (table["place"] == place).any()]
    figure, grid = panels(len(labels), len(places), 1.5)
    floor = norm.vmin if isinstance(norm, LogNorm) else 0.0
    for label, line in zip(labels, grid, strict=True):
        mine = table[table["label"] == label]
        for axes, place in zip(line, places, strict=True):
            rows = mine[mine["place"] == place]
            axes.set(xticks=[], yticks=[])
            if rows.empty:
                axes.set_axis_off()
                continue
            image = heat_map(axes, matrix(rows, length, floor))
            image.set_norm(norm)
            axes.set_title(f"layer {rows['layer'].iloc[0]}, {rows['heads'].iloc[0]}", fontsize=8)
        line[0].set_yticks(*_ticks(mine, length), fontsize=5.5)
        line[0].set_ylabel(textwrap.fill(label, 16) + "\nquery (token)", fontsize=8)
    alike = table.groupby("query")["text"].nunique().max() <= 1
    for axes, label in _named_below(grid, labels, alike):
        axes.set_xticks(*_ticks(table[table["label"] == label], length), rotation=90, fontsize=5.5)
        axes.set_xlabel("key (token)", fontsize=8)
    for axes in (axes for line in grid for axes in line):
        axes.tick_params(length=1.5, pad=1.5)
    bar = figure.colorbar(image, ax=figure.axes, location="bottom", aspect=45, pad=0.01)
    bar.set_label(unit)
    return figure


def _ticks(rows: pd.DataFrame, length: int) -> tuple[list[int], list[str]]:
    """Positions that have room for a name, and the tokens there."""
    texts = rows.dropna(subset=["text"]).drop_duplicates("query").set_index("query")["text"]
    ticks = list(range(0, length, -(-length // NAMED)))
    return ticks, [token_label(str(texts.get(tick, tick))) for tick in ticks]


def _named_below(grid: list[list[Axes]], labels: list[str], alike: bool) -> Iterator[tuple[Axes, str]]:
    """Yield the axes with tick labels of keys: the lowest of each column, or all where the models' tokens differ."""
    for column in zip(*grid, strict=True):
        shown = [(axes, label) for axes, label in zip(column, labels, strict=True) if axes.axison]
        yield from shown[-1:] if alike else shown
