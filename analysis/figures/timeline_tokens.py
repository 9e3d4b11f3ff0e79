"""Typical tokens of each timeline (memory, expert) of the head with the most mutual information."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import NoData
from analysis.loading.probes import mutual_information, one_model, routing_rows
from analysis.loading.results import Results
from analysis.plotting.sentence_maps import token_label
from analysis.plotting.style import PALETTE, choice_colors, panels, provenance_text, split_text, styled

FIGURES = (
    Entry(
        "timeline_tokens",
        "What each timeline reads",
        needs=("table.assignments",),
        section="Routing",
        place=20,
    ),
)

LEAST = 5
"""A token counts as typical only if it went there so often (rarer ones: by chance) and more than elsewhere."""

MOST_TOKENS, MOST_CHOICES = 6, len(PALETTE)
COLUMNS = (
    *("run", "label", "color", "seed", "training_set", "split", "block", "noun", "layer", "head"),
    *("information", "choice", "share", "token", "text", "count", "total", "lift"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per choice and typical token of the head with the most mutual information.

    lift: how much likelier the token is in this choice than anywhere, (n_ct/n_c) / (n_t/N); count: n_ct, at least
    LEAST; total: n_t; share: n_c/N; information: the head's, in nats. Only the MOST_CHOICES
    most loaded choices are in the table.
    Raises NoData where no token is LEAST times in one choice, and more often than elsewhere.
    """
    rows = one_model(routing_rows(results, "assignments"))
    heads = [group.assign(information=_information(group)) for _, group in rows.groupby(["layer", "head"])]
    typical = with_lift(max(heads, key=lambda head: head["information"].iloc[0]))
    typical = typical[typical["choice"].isin(_most_loaded(typical))]
    typical = typical[(typical["count"] >= LEAST) & (typical["lift"] > 1)]
    if typical.empty:
        raise NoData(
            f"no token went to one place {LEAST} times and more often than the others; probe more text "
            "(probe.routing_tokens)"
        )
    typical = typical.sort_values(["choice", "lift", "count"], ascending=[True, False, False])
    return typical.groupby("choice").head(MOST_TOKENS)[list(COLUMNS)].reset_index(drop=True)


def _information(rows: pd.DataFrame) -> float:
    choice, token = (pd.factorize(rows[name])[0] for name in ("choice", "token"))
    return mutual_information(choice, token, rows["count"].to_numpy("int64"))


def with_lift(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one head's counts with the columns total, share and lift.

    rows: a row a pair of choice c and token t, with the columns choice, token and count n_ct. total: n_t = Σ_c n_ct;
    share: n_c/N of the head's N tokens, 0 to 1; lift: (n_ct/n_c) / (n_t/N), above 1 where t goes to c more often than
    elsewhere.
    """
    total = rows.groupby("token")["count"].transform("sum")
    share = rows.groupby("choice")["count"].transform("sum") / rows["count"].sum()
    return rows.assign(total=total, share=share, lift=rows["count"] / total / share)


def _most_loaded(rows: pd.DataFrame) -> pd.Index:
    return rows.drop_duplicates("choice").nlargest(MOST_CHOICES, "share")["choice"]


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a choice: a bar of lift per token, counts at its right. table: COLUMNS."""
    colors, what = choice_colors(table["choice"]), table["noun"].iloc[0]
    choices = list(table["choice"].unique())
    columns = min(2, len(choices))
    figure, grid = panels(-(-len(choices) // columns), columns, 1.65, sharex=True)
    flat = [axes for line in grid for axes in line]
    for choice, axes in zip(choices, flat, strict=False):
        rows = table[table["choice"] == choice]
        _draw(axes, rows, colors[choice])
        axes.set_title(f"{what} {choice}: {100 * rows['share'].iloc[0]:.0f} % of tokens", fontsize=9)
    for axes in flat[len(choices) :]:
        axes.set_axis_off()
    for axes in flat[max(0, len(choices) - columns) : len(choices)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("lift (× as likely as anywhere)")
    flat[0].set_xlim(0, 1.3 * table["lift"].max())
    return figure


def _draw(axes: Axes, rows: pd.DataFrame, color: str) -> None:
    places = range(len(rows))
    axes.barh(places, rows["lift"], color=color, height=0.7)
    for place, row in zip(places, rows.itertuples(index=False), strict=True):
        right_of_bar = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
        axes.annotate(f"{row.count} of {row.total}", (row.lift, place), **right_of_bar)
    axes.set_yticks(places, [token_label(text, 14) for text in rows["text"]], fontsize=8)
    axes.set_ylim(MOST_TOKENS - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.axvline(1, color="#8a8f98", linewidth=0.9, linestyle=":")


def caption(table: pd.DataFrame) -> str:
    """Name the head, and define lift and counts."""
    first, what = table.iloc[0], table["noun"].iloc[0]
    return (
        f"{first.label}, router of {first.block}, layer {first.layer}, head {first['head']}: the head whose {what} "
        f"says most about the token ({first.information:.3f} nats). For each {what}: the tokens with the highest lift "
        "(probability there divided by probability anywhere), among those that went there "
        f"{LEAST} times or more. Numbers: how many of the token's occurrences on {split_text(table)}; ␣: a space. "
        f"{provenance_text(table)}"
    )
