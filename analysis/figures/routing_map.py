"""First and second choices of every routing head for each token of a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import listing
from analysis.loading.probes import routing_rows, sentence_routes, spaced_layers
from analysis.loading.results import Results
from analysis.plotting.sentence_maps import token_label
from analysis.plotting.style import (
    choice_colors,
    choice_legend,
    new_figure,
    provenance_text,
    sentence_text,
    styled,
)

FIGURES = (
    Entry(
        "routing_map",
        "Routing of a sentence",
        needs=("table.routes", "table.sentence"),
        section="Routing",
        place=10,
    ),
)

LONGEST = 36
"""Tokens that have room for their text side by side."""

LAYERS = 4
PARTS = 3
"""Lines of the picture a head: the last is the second choice's."""

EVEN = 0.35
"""Opacity of a choice that is as probable as any other: a colour that can be told, and pale beside a sure one."""

COLUMNS = (
    *("run", "label", "series", "color", "seed", "training_set", "layer", "block", "noun", "head"),
    *("position", "text", "given", "rank", "choice", "choices", "probability", "routed_layers", "routers"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: first and second choices of one model's heads for LONGEST tokens, in at most LAYERS layers.

    choices: how many there are; routed_layers: all layers that have this router; routers: those of all models, both as
    text.
    """
    rows = sentence_routes(results, LONGEST)
    rows = rows.assign(
        choices=max(2, int(rows["choice"].max()) + 1),
        routed_layers=listing(sorted(rows["layer"].unique()), 40),
        routers=listing(sorted(routing_rows(results, "routes")["series"].unique()), 20),
    )
    return spaced_layers(rows[rows["rank"] < 2], LAYERS)[list(COLUMNS)].reset_index(drop=True)


def picture(rows: pd.DataFrame, colors: dict[int, str]) -> np.ndarray:
    """Return colours [heads·PARTS, positions, 4] of one layer: the choice's colour, more opaque if more probable.

    A head's first choice fills PARTS lines less the last, which its second choice has; all of them where there is none.
    """
    image = np.zeros((PARTS * (int(rows["head"].max()) + 1), int(rows["position"].max()) + 1, 4))
    for row in rows.sort_values("rank").itertuples(index=False):
        top = PARTS * row.head
        lines = slice(top, top + PARTS) if row.rank == 0 else top + PARTS - 1
        image[lines, row.position] = (*to_rgb(colors[row.choice]), opacity(row.probability, row.choices))
    return image


def opacity(probability: float, choices: int) -> float:
    """Return the opacity of a choice among so many: 0 at 0, EVEN at an even router's probability, 1 at 1.

    Straight lines between. The probability itself would leave an even router's picture white.
    """
    return float(np.interp(probability, (0.0, 1 / choices, 1.0), (0.0, EVEN, 1.0)))


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a layer, heads down, tokens across; colour: the choice, paler if less probable. table: COLUMNS.

    The strip under a head's first choice is its second.
    """
    colors, layers = choice_colors(table["choice"]), list(table["layer"].unique())
    heads, what = int(table["head"].max()) + 1, table["noun"].iloc[0]
    figure, grid = new_figure(1.3 + len(layers) * (0.3 + 0.19 * heads), rows=len(layers), sharex=True)
    for layer, axes in zip(layers, grid, strict=True):
        image = picture(table[table["layer"] == layer], colors)
        frame = (-0.5, image.shape[1] - 0.5, heads - 0.5, -0.5)
        axes.imshow(image, aspect="auto", interpolation="nearest", extent=frame)
        axes.hlines(np.arange(heads - 1) + 0.5, *frame[:2], color="white", linewidth=1)
        axes.grid(False)
        axes.set_yticks(range(heads), [str(head) for head in range(heads)], fontsize=7)
        axes.set_ylabel("head", fontsize=8)
        axes.set_title(f"layer {layer}", fontsize=9)
    _name_tokens(grid[-1], table)
    figure.legend(handles=choice_legend(colors, what), loc="outside lower left", ncols=4, handlelength=1.2)
    return figure


def _name_tokens(axes: Axes, table: pd.DataFrame) -> None:
    texts = table.drop_duplicates("position").set_index("position")["text"]
    names = [
        token_label(str(texts[place]) if pd.notna(texts[place]) else str(place)) for place in texts.index
    ]
    axes.set_xticks(list(texts.index), names, rotation=90, fontsize=7)
    axes.tick_params(axis="x", length=2, pad=2)
    axes.set_xlabel("token of the sentence")


def caption(table: pd.DataFrame) -> str:
    """Name the model and the layers, and explain the colours."""
    what = table["noun"].iloc[0]
    first, second = (table[table["rank"] == rank] for rank in (0, 1))
    heads = first.groupby(["layer", "head"])["choice"]
    commonest = heads.agg(lambda choices: (choices == choices.mode()[0]).mean())
    even = 1 / table["choices"].iloc[0]
    strip = f", in the strip below it the second ({second['probability'].mean():.2f})" if len(second) else ""
    return (
        f"{_which(table)}: the {what} that each head's router chose first for each token of {sentence_text(table)}; "
        f"opacity: its probability (mean {first['probability'].mean():.2f}; {EVEN:.0%} opaque at {even:.2g}, an even "
        f"router's){strip}. Numbers mean something within a "
        f"head only. The most common {what} of a head gets {100 * commonest.mean():.0f} % of this sentence on average. "
        f"␣: a space. {provenance_text(table)}"
    )


def _which(table: pd.DataFrame) -> str:
    """Name the model, its router and the layers drawn, and the routers and layers that are not drawn."""
    first, shown = table.iloc[0], listing(sorted(table["layer"].unique()), 40)
    layers = f"layer{'s' * (table['layer'].nunique() > 1)} {shown}"
    of_layers = "" if shown == first.routed_layers else f" (routed: {first.routed_layers})"
    of_routers = "" if first.routers in set(table["series"]) else f" (one of the routers of {first.routers})"
    return f"{first.label}, router of {first.block}{of_routers}, {layers}{of_layers}"
