"""A sentence as each timeline (memory, expert) reads it: all choices below each other, each with its tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.figure_entry import Entry
from analysis.loading.columns import plural
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
    FAINT,
    PALETTE,
    choice_colors,
    panels,
    provenance_text,
    sentence_text,
    styled,
)

FIGURES = (
    Entry(
        "routed_sentence",
        "What each timeline reads of a sentence",
        needs=("table.routes", "table.sentence"),
        section="Routing",
        place=14,
    ),
)

LONGEST, LAYERS, MOST = 48, 3, len(PALETTE)
LINE = 68
"""Characters of a line."""

COLUMNS = (
    *("run", "label", "color", "seed", "training_set", "layer", "block", "noun", "head", "heads"),
    *("position", "text", "given", "rank", "choice", "choices", "probability"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: the choices for LONGEST tokens in at most LAYERS layers, of the head that tells them apart best.

    choices: how many there are. Of more than MOST only those that get most of these tokens are in the table.
    """
    rows = most_informative_heads(spaced_layers(sentence_routes(results, LONGEST), LAYERS))
    rows = rows.assign(choices=int(rows["choice"].max()) + 1)
    rows = rows[rows["taken"]]
    counts = rows.groupby(["layer", "choice"]).size()
    most = counts[counts.groupby("layer").rank(method="first", ascending=False) <= MOST].index
    listed = pd.MultiIndex.from_frame(rows[["layer", "choice"]]).isin(most)
    return rows[listed][list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a layer: for every choice the tokens that went there, in their order. table: COLUMNS."""
    colors = choice_colors(table["choice"])
    pages = {layer: list(_lines(rows)) for layer, rows in table.groupby("layer")}
    heights = [len(lines) for lines in pages.values()]
    figure, grid = panels(len(pages), 1, 1, height_ratios=heights)
    figure.set_figheight(0.2 * sum(heights) + 0.4 * len(pages))
    for (layer, lines), (axes,) in zip(pages.items(), grid, strict=True):
        _write(axes, lines, colors)
        axes.set_title(place_title(table[table["layer"] == layer]), fontsize=9)
        starts: dict[int, int] = {}
        for number, (choice, _) in enumerate(lines):
            starts.setdefault(choice, number)
        axes.set_yticks(
            list(starts.values()), [f"{table['noun'].iloc[0]} {choice}" for choice in starts], fontsize=8
        )
    return figure


def _lines(rows: pd.DataFrame) -> Iterator[tuple[int, list]]:
    """Yield (choice, [(first column, text, row), ...]) for each line; a choice without tokens has an empty one."""
    choices = range(rows["choices"].iloc[0])
    for choice in choices if len(choices) <= MOST else sorted(rows["choice"].unique()):
        line, column = [], 0
        for row in rows[rows["choice"] == choice].sort_values("position").itertuples(index=False):
            text = token_label(str(row.position if pd.isna(row.text) else row.text), 14)
            width = len(text)
            if column + width > LINE:
                yield choice, line
                line, column = [], 0
            line.append((column, width, text, row))
            column += width + 1
        yield choice, line


def _write(axes: Axes, lines: list, colors: dict[int, str]) -> None:
    axes.set(xlim=(-0.5, LINE + 0.5), ylim=(len(lines) - 0.5, -0.5), xticks=[])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for height, (choice, line) in enumerate(lines):
        if height and lines[height - 1][0] != choice:
            axes.axhline(height - 0.5, color=FAINT, linewidth=0.7)
        for column, width, text, row in line:
            fill = (
                {"facecolor": colors[choice], "alpha": 0.15 + 0.6 * row.probability} if row.rank == 0 else {}
            )
            outline = {"fill": row.rank == 0, "edgecolor": colors[choice], "linewidth": 0.8}
            axes.add_patch(Rectangle((column, height - 0.4), width, 0.8, **outline, **fill))
            axes.text(column, height, text, family="DejaVu Sans Mono", fontsize=7, va="center_baseline")


def caption(table: pd.DataFrame) -> str:
    """Explain the rows, and name the head, the sentence and what is left out."""
    first, what = table.iloc[0], table["noun"].iloc[0]
    most = (
        f", the {MOST} of {first.choices} {plural(what)} that get most of them"
        if first.choices > MOST
        else ""
    )
    further = " outlined: its further choices;" if (table["rank"] > 0).any() else ""
    return (
        f"{first.label}, router of {first.block}: tokens of {sentence_text(table)} by the {what} that reads "
        f"them{most}. Filled: the token's first choice, darker if more probable;{further} ␣: a space. "
        f"{which_heads(table)}Numbers mean something within a router only. {provenance_text(table)}"
    )
