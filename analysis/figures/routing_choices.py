"""Probabilities of all choices for each token of a sentence, the first and the second with their weights."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.probes import (
    most_informative_heads,
    place_title,
    sentence_routes,
    spaced_layers,
    which_heads,
)
from analysis.loading.results import Results
from analysis.plotting.sentence_maps import token_label
from analysis.plotting.style import (
    choice_colors,
    choice_legend,
    panels,
    provenance_text,
    sentence_text,
    styled,
)

FIGURES = (
    Entry(
        "routing_choices",
        "First, second and further choices",
        needs=("table.routes", "table.alternatives", "table.sentence"),
        section="Routing",
        place=12,
    ),
)

LONGEST, LAYERS = 36, 2
NUMBERED, WEIGHED = 0.05, 0.13
"""From these probabilities on a segment has room for the choice's number, and for the probability beside it."""

PALE = 0.4
"""Opacity from the third choice on."""

COLUMNS = (
    *("run", "label", "color", "seed", "training_set", "layer", "block", "noun", "head", "heads"),
    *("position", "text", "given", "rank", "choice", "probability", "taken"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: all choices for LONGEST tokens of a head (`most_informative_heads`) in at most LAYERS layers."""
    rows = most_informative_heads(spaced_layers(sentence_routes(results, LONGEST), LAYERS))
    return rows[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a layer, tokens down: a bar of all probabilities, from the first choice on. table: COLUMNS."""
    colors, layers = choice_colors(table["choice"]), list(table["layer"].unique())
    texts = table.drop_duplicates("position").sort_values("position").set_index("position")["text"]
    figure, (line,) = panels(1, len(layers), 1.2 + 0.165 * len(texts), sharey=True)
    for layer, axes in zip(layers, line, strict=True):
        rows = table[table["layer"] == layer]
        _bars(axes, rows, colors)
        axes.set_title(place_title(rows), fontsize=9)
        axes.set_xlabel("probability (%)", fontsize=8)
    names = [token_label(str(place if pd.isna(text) else text)) for place, text in texts.items()]
    line[0].set_yticks(list(texts.index), names, fontsize=7)
    line[0].set_ylim(texts.index.max() + 0.6, texts.index.min() - 0.6)
    line[0].set_ylabel("token of the sentence", fontsize=8)
    legend = choice_legend(colors, table["noun"].iloc[0])
    figure.legend(handles=legend, loc="outside lower left", ncols=4, handlelength=1.2)
    return figure


def _bars(axes: Axes, rows: pd.DataFrame, colors: dict[int, str]) -> None:
    left = rows.groupby("position")["probability"].cumsum() - rows["probability"]
    shades = [
        (*to_rgb(colors[choice]), 1 if rank < 2 else PALE)
        for choice, rank in zip(rows["choice"], rows["rank"], strict=True)
    ]
    bars = {"height": 0.86, "color": shades, "edgecolor": "white", "linewidth": 0.5}
    axes.barh(rows["position"], 100 * rows["probability"], left=100 * left, **bars)
    for row, start, shade in zip(rows.itertuples(index=False), left, shades, strict=True):
        if row.probability >= NUMBERED:
            weight = f": {100 * row.probability:.0f}" if row.rank < 2 and row.probability >= WEIGHED else ""
            ink = "white" if row.rank < 2 and sum(shade[:3]) < 1.4 else "black"
            middle = 100 * (start + row.probability / 2)
            place = {"ha": "center", "va": "center_baseline", "fontsize": 6, "color": ink}
            axes.text(middle, row.position, f"{row.choice}{weight}", **place)
    axes.set(xlim=(0, 100), xticks=(0, 50, 100))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(False)


def caption(table: pd.DataFrame) -> str:
    """Explain the bars, and give the mean weights of first and second choices."""
    first, what = table.iloc[0], table["noun"].iloc[0]
    means = table.groupby("rank")["probability"].mean()
    taken = int(table.groupby(["layer", "head", "position"])["taken"].sum().max())
    second = f", the second {means[1]:.2f}" if 1 in means.index else ""
    used = "first choice" if taken == 1 else f"first {taken} choices"
    return (
        f"{first.label}, router of {first.block}: probabilities of every {what} for each token of "
        f"{sentence_text(table)}, from the first choice on (mean {means[0]:.2f}{second}; paler: further ones), with "
        f"the number of the {what} and, where there is room, the probability in %. The block uses the {used}. "
        f"{which_heads(table)}␣: a space. {provenance_text(table)}"
    )
