"""Schematic attention pattern and module diagram of every mixer of these results."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import is_color_like, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.figure_entry import Entry
from analysis.files import NoData, listing
from analysis.loading.columns import blocks
from analysis.loading.results import Results
from analysis.plotting.sketches import BLOCK, DECAY, GROUPS, KERNEL, KEYS, TOKENS, WINDOW, cells, path, sketch
from analysis.plotting.style import FAINT, INK, panels, provenance_text, series_styles, styled

FIGURES = (
    Entry(
        "patterns",
        "What may attend to what",
        needs=("runs.blocks",),
        section="Attention",
        place=10,
    ),
)

COLUMNS = (
    "letter",
    "name",
    "title",
    "color",
    "mask",
    "sketch",
    "query",
    "key",
    "strength",
    "group",
    "seeds",
    "training_set",
)
SIDE_BY_SIDE = 2


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per mixer, query and key that the query may read: strength and group.

    seeds, training_set: of the runs that the mixers are taken from.
    Raises NoData where no run names its mixers.
    """
    mixers = {block["letter"]: block for block in blocks(results.runs) if block.get("letter")}
    if not mixers:
        raise NoData("no run names its mixers (blocks in summary.json)")
    rows = [
        (letter, *(block.get(key, "") for key in ("name", "title", "color", "mask")), _sketch(block), *cell)
        for letter, block in sorted(mixers.items())
        for cell in cells(block.get("mask", ""))
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS[:-2]))
    seeds = " ".join(str(seed) for seed in sorted(results.runs["seed"].dropna().unique()))
    return frame.assign(seeds=seeds, training_set=listing(results.runs["training_set"].dropna().unique()))


def _sketch(block: dict) -> str:
    """Return the block's own sketch as JSON; "" without one."""
    return json.dumps(block["sketch"], ensure_ascii=False) if block.get("sketch") else ""


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw each mixer's module at the left and its pattern at the right, in the mixer's colour."""
    mixers = [mixer for _, mixer in table.groupby("letter", sort=False)]
    count = -(-len(mixers) // SIDE_BY_SIDE)
    figure, grid = panels(count, 2 * SIDE_BY_SIDE, 1.75, width_ratios=(1.25, 1) * SIDE_BY_SIDE)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.04, wspace=0.01, hspace=0.03)
    places = [(row[2 * side], row[2 * side + 1]) for row in grid for side in range(SIDE_BY_SIDE)]
    for (left, right), mixer in zip(places, mixers, strict=False):
        first = mixer.iloc[0]
        color = first["color"] if is_color_like(first["color"]) else INK
        groups = [
            series_style.color
            for series_style in series_styles((str(group), color) for group in range(GROUPS)).values()
        ]
        sketch(left, path(first["mask"], first["sketch"]), color, groups)
        left.set_title(
            f"{first['letter']}  {first['title']}", fontsize=8.5, color=INK, fontweight="bold"
        ).set_in_layout(False)
        _draw_pattern(right, mixer, groups)
    for left, right in places[len(mixers) :]:
        left.remove()
        right.remove()
    return figure


def _draw_pattern(axes: Axes, mixer: pd.DataFrame, groups: list[str]) -> None:
    """Draw a cell for each row in its group's colour, paler for weaker weights; grey outside the mask."""
    squares = [Rectangle((row.key, row.query), 1, 1) for row in mixer.itertuples()]
    faces = [_shade(groups[row.group], row.strength) for row in mixer.itertuples()]
    axes.add_collection(PatchCollection(squares, facecolors=faces, edgecolors="white", linewidths=0.5))
    axes.set(xlim=(0, TOKENS), ylim=(TOKENS, 0), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0.5, TOKENS - 0.5], ["1", str(TOKENS)])
    axes.tick_params(labelsize=7, length=0, pad=1)
    axes.set_xlabel("key (token)", fontsize=7, labelpad=-5)
    axes.set_ylabel("query (token)", fontsize=7, labelpad=-7)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _shade(color: str, strength: float) -> np.ndarray:
    if strength == 0:
        return np.array(to_rgb(FAINT))
    return strength * np.array(to_rgb(color)) + (1 - strength) * np.array(to_rgb("white"))


def caption(table: pd.DataFrame) -> str:
    """Explain the drawing and say that it is schematic, not measured."""
    masks = set(table["mask"])
    sentences = [text for mask, text in _READ.items() if mask in masks]
    seeds = [int(seed) for seed in table["seeds"].iloc[0].split()]
    first = pd.DataFrame({"seed": seeds, "training_set": table["training_set"].iloc[0]})
    return (
        f"Schematic, drawn for {TOKENS} tokens, not measured. Left: a token's way through the mixer; output "
        "projections, norms and output gates are left out; ↻ is carried from token to token. "
        "Right: which keys a query may read: coloured, "
        f"and paler where their weight fades; grey: earlier, but out of reach. {' '.join(sentences)} "
        f"The mixers are those of these runs: {provenance_text(first)}"
    )


_READ = {
    "window": f"Window: the last {WINDOW} tokens.",
    "timeline": "Timelines: tokens read those that the router sent to the same one (three shades).",
    "topk": f"Top-k: an indexer picks {KEYS} keys for each query.",
    "blocks": f"Blocks of {BLOCK} tokens: summaries of all, some in full, and the last {WINDOW} tokens (three shades).",
    "recurrent": f"Recurrences: a state that holds the past and loses it (here by {1 - DECAY:.0%} a token).",
    "memories": "Memories: a token writes into and reads the state it is routed to (three shades, one each).",
    "convolution": f"Convolution: the last {KERNEL} tokens.",
}
