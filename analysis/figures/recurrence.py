"""Norm and effective rank of recurrent states by tokens seen, and half-lives of their decays."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, layer_axis, length_axis, plain_log_ticks
from analysis.plotting.style import (
    SeriesStyle,
    band_text,
    labels_with_data,
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
        "recurrence",
        "Recurrent states",
        needs=("measures.state_norm", "measures.state_rank"),
        section="Recurrences",
        place=10,
    ),
)

AXES = {"state_norm": "position", "state_rank": "position", "decay_half_life": "quantile"}
MEASURES = tuple(AXES)
UNITS = {"state_norm": "norm of the state", "state_rank": "effective rank"}
LOW, MEDIAN, HIGH = 0.1, 0.5, 0.9
COLUMNS = (
    *("run", "label", "color", "seed", "training_set", "layer", "head"),
    *("measure", "end", "value"),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer, head and end (tokens seen, or the quantile of a half-life)."""
    return select_axis(probe_measures(results, MEASURES), AXES)[list(COLUMNS)]


def half_lives(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median over heads and seeds of each quantile, layer by quantile; infinite without decay."""
    return rows.pivot_table(index="layer", columns="end", values="value", aggfunc="median").round(12)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw norm and rank against tokens seen, and half-life by layer. table: COLUMNS."""
    labels, styles = labels_with_data(table), table_styles(table)
    shown = [name for name in MEASURES if (table["measure"] == name).any()]
    figure, grid = new_figure(2.1 * len(shown) + 0.4, rows=len(shown))
    for measure, axes in zip(shown, grid, strict=True):
        for label in labels:
            rows = table[(table["measure"] == measure) & (table["label"] == label)]
            if measure == "decay_half_life":
                _draw_half_lives(axes, half_lives(rows), styles[label], label)
            else:
                draw_line(axes, over_seeds(rows, "end"), styles[label], label)
        if measure == "decay_half_life":
            axes.set(ylabel="half-life (tokens)", yscale="log")
            layer_axis(axes, 10)
            plain_log_ticks(axes.yaxis)
            axes.set_title("half-life: median, 10 % to 90 % quantiles")
        else:
            seen = table.loc[table["measure"] == measure, "end"]
            length_axis(axes, span=(seen.min(), seen.max()))
            axes.set(xlabel="tokens seen", ylabel=UNITS[measure])
            axes.set_ylim(bottom=0)
    legend_below(figure, legend_entries(styles, labels))
    return figure


def _draw_half_lives(axes: Axes, quantiles: pd.DataFrame, series_style: SeriesStyle, label: str) -> None:
    if quantiles.empty:
        return
    x = quantiles.index.to_numpy("float64")
    finite = quantiles.where(np.isfinite(quantiles))
    axes.fill_between(x, finite[LOW], finite[HIGH], color=series_style.color, alpha=0.15, linewidth=0)
    style = {"linestyle": series_style.linestyle, "marker": series_style.marker, "markersize": 4}
    axes.plot(x, finite[MEDIAN], color=series_style.color, label=label, **style)


def caption(table: pd.DataFrame) -> str:
    """Define norm, rank and half-life, and give their values at the end."""
    models = []
    for label in labels_with_data(table):
        rows = table[table["label"] == label]
        ranks, lives = (rows[rows["measure"] == name] for name in ("state_rank", "decay_half_life"))
        parts = []
        if not ranks.empty:
            last = ranks["end"].max()
            parts.append(
                f"rank {ranks.loc[ranks['end'] == last, 'value'].mean():.3g} after {last:,.0f} tokens"
            )
        if not lives.empty:
            parts.append(f"median half-life {half_lives(lives)[MEDIAN].median():.3g} tokens")
        models.append(f"{label}: {', '.join(parts)}")
    return (
        "Frobenius norm and effective rank (exponential of the entropy of the normalised singular values) of the "
        f"state, mean over layers, heads and, where there are several, memories ({band_text(table)}); half-life: "
        "tokens after which a decay has halved what is stored, quantiles over tokens and channels, median over heads "
        f"and seeds. {'; '.join(models)}. {provenance_text(table)}"
    )
