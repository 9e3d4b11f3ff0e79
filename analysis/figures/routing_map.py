"""Choices of every routing head for each token of a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figure_entry import Entry
from analysis.loading.results import Results
from analysis.loading.routing import one_model, routing_rows
from analysis.plotting.captions import provenance_text
from analysis.plotting.choice_colors import choice_colors
from analysis.plotting.style import PALETTE, new_figure, styled
from analysis.plotting.token_labels import token_label
from analysis.units import listing

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
COLUMNS = (
    *("run", "label", "series", "color", "seed", "training_set", "layer", "block", "noun", "head"),
    *("position", "text", "choice", "probability", "routed_layers", "routers"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: first choices of one model's heads for the first LONGEST tokens, in at most LAYERS layers.

    routed_layers: all layers that have this router; routers: those of all models, both as text.
    """
    every = routing_rows(results, "routes")
    rows = one_model(every)
    rows = rows.assign(
        routed_layers=listing(sorted(rows["layer"].unique()), 40),
        routers=listing(sorted(every["series"].unique()), 20),
    )
    rows = rows[
        (rows["rank"] == 0) & (rows["position"] < LONGEST) & rows["layer"].isin(_layers(rows["layer"]))
    ]
    texts = results.table("sentence")[["experiment", "run", "position", "text"]]
    rows = rows.merge(texts, how="left", on=["experiment", "run", "position"])
    return rows.sort_values(["layer", "head", "position"])[list(COLUMNS)].reset_index(drop=True)


def _layers(layers: pd.Series) -> list[int]:
    """Return the first, the last and evenly spaced layers between, LAYERS in all."""
    found = sorted(int(layer) for layer in layers.unique())
    places = np.linspace(0, len(found) - 1, min(LAYERS, len(found))).round().astype(int)
    return [found[place] for place in places]


def picture(rows: pd.DataFrame, colors: dict[int, str]) -> np.ndarray:
    """Return colours [heads, positions, 4] of one layer: the choice's colour, its probability as opacity."""
    image = np.zeros((int(rows["head"].max()) + 1, int(rows["position"].max()) + 1, 4))
    for row in rows.itertuples(index=False):
        image[row.head, row.position] = (*to_rgb(colors[row.choice]), row.probability)
    return image


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a layer, heads down, tokens across; colour: the choice, paler if less probable. table: COLUMNS."""
    colors, layers = choice_colors(table["choice"]), list(table["layer"].unique())
    heads, what = int(table["head"].max()) + 1, table["noun"].iloc[0]
    figure, grid = new_figure(1.3 + len(layers) * (0.3 + 0.17 * heads), rows=len(layers), sharex=True)
    for layer, axes in zip(layers, grid, strict=True):
        axes.imshow(picture(table[table["layer"] == layer], colors), aspect="auto", interpolation="nearest")
        axes.grid(False)
        axes.set_yticks(range(heads), [str(head) for head in range(heads)], fontsize=7)
        axes.set_ylabel("head", fontsize=8)
        axes.set_title(f"layer {layer}", fontsize=9)
    _name_tokens(grid[-1], table)
    figure.legend(handles=_legend(colors, what), loc="outside lower left", ncols=4, handlelength=1.2)
    return figure


def _name_tokens(axes: Axes, table: pd.DataFrame) -> None:
    texts = table.drop_duplicates("position").set_index("position")["text"]
    names = [
        token_label(str(texts[place]) if pd.notna(texts[place]) else str(place)) for place in texts.index
    ]
    axes.set_xticks(list(texts.index), names, rotation=90, fontsize=7)
    axes.tick_params(axis="x", length=2, pad=2)
    axes.set_xlabel("token of the sentence")


def _legend(colors: dict[int, str], what: str) -> list[Patch]:
    own = list(colors)[: len(PALETTE)] if len(colors) <= len(PALETTE) else list(colors)[: len(PALETTE) - 1]
    patches = [Patch(color=colors[choice], label=f"{what} {choice}") for choice in own]
    return patches + ([Patch(color=PALETTE[-1], label="others")] if len(own) < len(colors) else [])


def caption(table: pd.DataFrame) -> str:
    """Name the model and the layers, and explain the colours."""
    what = table["noun"].iloc[0]
    heads = table.groupby(["layer", "head"])["choice"]
    commonest = heads.agg(lambda choices: (choices == choices.mode()[0]).mean())
    return (
        f"{_which(table)}: the {what} that each head's router chose first for each token; "
        f"opacity: its probability (mean {table['probability'].mean():.2f}). A {what}'s number means something within "
        f"its head only. A head's commonest {what} gets {100 * commonest.mean():.0f} % of this sentence on average. "
        f"␣: a space. {provenance_text(table)}"
    )


def _which(table: pd.DataFrame) -> str:
    """Name the model, its router and the layers drawn, and the routers and layers that are not drawn."""
    first, shown = table.iloc[0], listing(sorted(table["layer"].unique()), 40)
    layers = f"layer{'s' * (table['layer'].nunique() > 1)} {shown}"
    of_layers = "" if shown == first.routed_layers else f" (routed: {first.routed_layers})"
    of_routers = "" if first.routers in set(table["series"]) else f" (one of the routers of {first.routers})"
    return f"{first.label}, router of {first.block}{of_routers}, {layers}{of_layers}"
