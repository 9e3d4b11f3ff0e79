"""Loss by position, out to eight times the trained length."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figure_entry import TEXT, Entry
from analysis.files import NoData, listing
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results, advice
from analysis.plotting.axes import draw_line, length_axis
from analysis.plotting.style import (
    INK,
    band_text,
    legend_below,
    legend_entries,
    new_figure,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds

FIGURES = (
    Entry(
        "extrapolation",
        "Beyond the trained length",
        needs=("measures.loss", "runs.seq_len"),
        section="Length",
        place=10,
        of=TEXT,
        compares=True,
    ),
)

COLUMNS = ("run", "label", "color", "seed", "training_set", "seq_len", "start", "end", "value")
STRAIGHT = 0.1
"""Differences up to this are drawn to scale, larger ones by their logarithm."""


def table(results: Results) -> pd.DataFrame:
    """Make the table: mean loss (nats/token) per run and bucket of positions; seq_len: the trained length.

    Raises NoData where no run has its loss by position.
    """
    rows = select_axis(probe_measures(results, ("loss",)), "position")
    rows = rows[rows["layer"].isna()]
    if rows["run"].isna().all():
        raise NoData(f"no run has its loss by position; {advice(results)}")
    return rows[list(COLUMNS)].reset_index(drop=True)


def above_trained(table: pd.DataFrame) -> pd.DataFrame:
    """Return loss minus the loss at the trained length, run by run, for the buckets from there on."""
    labels = []
    for _, rows in table.dropna(subset=["run"]).groupby("run", sort=False):
        within = rows[rows["end"] <= rows["seq_len"]]
        if within.empty:
            continue
        last = within.loc[within["end"].idxmax()]
        beyond = rows[rows["start"] >= last["start"]]
        labels.append(beyond.assign(value=beyond["value"] - last["value"]))
    return pd.concat(labels, ignore_index=True) if labels else table.iloc[:0]


def middle(rows: pd.DataFrame) -> pd.Series:
    """Return the x of each bucket: the geometric mean of its first and last position, counted from 1."""
    return ((rows["start"] + 1) * rows["end"]) ** 0.5


def final_gaps(table: pd.DataFrame) -> pd.Series:
    """Return by label, lowest first, loss in the last bucket minus loss at the trained length; mean over seeds."""
    above = above_trained(table)
    last = above.loc[above.groupby("run")["end"].idxmax()]
    return last.groupby("label")["value"].mean().sort_values()


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw loss by position; below, its excess over the loss at the trained length (vertical line)."""
    styles, gaps = table_styles(table), final_gaps(table)
    labels = [
        *gaps.index,
        *(name for name in table.loc[table["run"].notna(), "label"].unique() if name not in gaps),
    ]
    figure, (loss, above) = new_figure(6.3 + 0.21 * ((len(labels) + 1) // 2), rows=2)
    for axes, rows in ((loss, table.dropna(subset=["run"])), (above, above_trained(table))):
        placed = rows.assign(middle=middle(rows))
        for label in labels:
            draw_line(axes, over_seeds(placed[placed["label"] == label], "middle"), styles[label], label)
        for length in sorted(set(rows["seq_len"].dropna().astype(int))):
            axes.axvline(length, color=INK, linewidth=1, label="_trained")
        if len(rows):
            length_axis(axes, span=(placed["middle"].min(), rows["end"].max()))
        axes.set_xlabel("position in the sequence (tokens)")
    loss.set_ylabel("loss (nats/token)")
    loss.set_title("loss; vertical line: the trained length")
    above.set_ylabel("difference (nats/token)")
    above.set_title("loss minus loss at the trained length")
    _difference_axis(above)
    legend_below(figure, legend_entries({label: styles[label] for label in labels}, labels))
    return figure


def _difference_axis(axes: Axes) -> None:
    axes.axhline(0, color=INK, linewidth=0.8, linestyle="--", label="_zero")
    low, high = axes.get_ylim()
    if max(-low, high) <= 2 * STRAIGHT:
        return
    low, high = min(1.3 * low, -STRAIGHT / 2), max(1.3 * high, STRAIGHT / 2)
    axes.set_yscale("symlog", linthresh=STRAIGHT)
    axes.set_ylim(low, high)
    ticks = [sign * step * 10.0**power for sign in (-1, 1) for power in range(-1, 3) for step in (1, 3)]
    inside = [tick for tick in (0.0, *ticks) if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(inside))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    )


def caption(table: pd.DataFrame) -> str:
    """Give the excess of each model's loss in the last bucket over that at the trained length."""
    shown = table.dropna(subset=["run"])
    gaps, known = final_gaps(table), shown["seq_len"].dropna()
    lengths = listing(f"{length:,}" for length in sorted(set(known.astype(int))))
    far = shown.loc[shown["end"].idxmax()]
    times = math.nan if known.empty else far["end"] / known.max()
    differences = "; ".join(f"{label} {gap:+.3f}" for label, gap in gaps.items())
    return (
        f"Mean loss of the tokens at a position, the same tokens at all ({band_text(table)}); trained on {lengths} "
        f"tokens, scored on up to {far['end']:,.0f} ({times:.3g}×). "
        f"Loss in the last bucket ({far['start']:,.0f} to {far['end']:,.0f}) "
        "minus loss in the last bucket within the trained length, nats/token: "
        f"{differences or 'unknown, the trained length is not recorded'}. "
        f"Above {STRAIGHT:g} the lower panel is logarithmic. {provenance_text(table)}"
    )
