"""Mutual information of a router's choice and the token, compared with chance and with token frequency."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figure_entry import Entry
from analysis.files import listing
from analysis.loading.probes import mutual_information, routing_rows
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, whole_ticks
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    band_text,
    dots_text,
    legend_below,
    panels,
    provenance_text,
    split_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds, single_heads

FIGURES = (
    Entry(
        "mutual_information",
        "What a choice says about the token",
        needs=("table.assignments",),
        section="Routing",
        place=40,
    ),
)

COLUMNS = (
    *("run", "label", "series", "color", "seed", "training_set", "block", "layer", "head"),
    *("split", "measure", "value"),
)
MEASURES = {"token": "-", "frequency": (0, (5, 1.6)), "shuffled": (0, (1.2, 1.2))}
SHUFFLES = 4


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer, head and measure of `information`."""
    rows = routing_rows(results, "assignments")
    place = ["run", "label", "series", "color", "seed", "training_set", "block", "layer", "head", "split"]
    tables = [
        {**dict(zip(place, key, strict=True)), "measure": measure, "value": value}
        for key, group in rows.groupby(place, sort=False, dropna=False)
        for measure, value in information(group["choice"], group["token"], group["count"]).items()
    ]
    return pd.DataFrame(tables, columns=list(COLUMNS))


def information(choices: pd.Series, tokens: pd.Series, counts: pd.Series) -> dict[str, float]:
    """Return four information measures (nats) of counts n_ct of token t with choice c, N in all.

        token      I(C; T) = Σ_ct n_ct/N · ln(n_ct·N / (n_c·n_t))
        frequency  the same with floor(log2 n_t) in place of t: the information in a token's frequency alone;
                   never above `token`
        shuffled   the same as `token` with choices permuted among the N occurrences (n_c and n_t unchanged), mean of
                   SHUFFLES permutations: the estimate's bias at finite N, if choice and token were independent
        entropy    H(C) = −Σ_c n_c/N · ln(n_c/N): the upper bound of the others

    choices, tokens, counts: int64, a row per pair. The permutations are the same at every call.
    """
    _, choice = np.unique(choices.to_numpy("int64"), return_inverse=True)
    _, token = np.unique(tokens.to_numpy("int64"), return_inverse=True)
    count = counts.to_numpy("int64")
    frequency = np.floor(np.log2(np.bincount(token, count))).astype("int64")[token]
    occurrences, random = np.repeat(token, count), np.random.default_rng(0)
    dealt = np.repeat(choice, count)
    shuffled = [mutual_information(random.permutation(dealt), occurrences) for _ in range(SHUFFLES)]
    return {
        "token": mutual_information(choice, token, count),
        "frequency": mutual_information(choice, frequency, count),
        "shuffled": float(np.mean(shuffled)),
        "entropy": mutual_information(choice, choice, count),
    }


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a router: by layer, the mean over heads of token (dots: heads), frequency and shuffled.

    table: COLUMNS.
    """
    styles = table_styles(table, "series")
    figure, grid = panels(len(styles), 1, 1.95, sharex=True)
    for series, (axes,) in zip(styles, grid, strict=True):
        rows = table[table["series"] == series]
        _draw(axes, rows, styles[series])
        axes.set_title(series)
        axes.set_ylabel("information\n(nats)")
        axes.set_ylim(bottom=0)
        whole_ticks(axes.xaxis)
    grid[-1][0].set_xlabel("layer (from 0)")
    names = ("of choice and token", "of choice and token frequency", "choices shuffled")
    handles = [
        Line2D([], [], color=INK, linestyle=line, label=name)
        for line, name in zip(MEASURES.values(), names, strict=True)
    ]
    legend_below(figure, handles)
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle) -> None:
    heads = single_heads(rows[rows["measure"] == "token"])
    dots = {"color": series_style.color, "markersize": 3.5, "alpha": 0.45, "markeredgewidth": 0}
    axes.plot(heads["layer"].astype("float64"), heads["value"], "o", label="_heads", **dots)
    for measure, linestyle in MEASURES.items():
        spread = over_seeds(rows[rows["measure"] == measure], "layer")
        marker = series_style.marker if measure == "token" else ""
        draw_line(axes, spread, series_style, measure, linestyle=linestyle, marker=marker)


def caption(table: pd.DataFrame) -> str:
    """Define the three lines, and give their means."""
    sentences = []
    for series, rows in table.groupby("series", sort=False):
        mean = rows.groupby("measure")["value"].mean()
        sentences.append(
            f"{series}: {mean['token']:.3f} of at most {mean['entropy']:.3f} nats (the entropy of the choices), "
            f"by frequency alone {mean['frequency']:.3f}, shuffled {mean['shuffled']:.3f}"
        )
    return (
        "Mutual information of a token's kind and its first choice on "
        f"{split_text(table)}, in nats: mean over heads "
        f"({band_text(table)}); dots: {dots_text(table)}. Dashed: with the token replaced by its frequency, rounded "
        "down to a power of two; dotted: choices shuffled among the tokens, which shows what is due to chance. "
        f"Mean over layers and heads: {'; '.join(sentences)}. {_by_construction(table)}{provenance_text(table)}"
    )


def _by_construction(table: pd.DataFrame) -> str:
    """Name models whose router in layer 0, which reads the token alone, has all the information by construction."""
    first = table[table["layer"] == 0].pivot_table(
        index=["series", "run", "head"], columns="measure", values="value"
    )
    if first.empty:
        return ""
    determined = np.isclose(first["token"], first["entropy"], rtol=1e-9)
    series = [
        name
        for name, all_heads in pd.Series(determined, first.index).groupby("series").all().items()
        if all_heads
    ]
    if not series:
        return ""
    return (
        f"In layer 0 the routers of {listing(series, 20)} read the token and nothing else: their choice is a function "
        "of it, and what the two share is the choice's whole entropy, by construction. "
    )
