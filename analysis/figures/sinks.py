"""Attention sinks: mass of attention on the first token, by layer."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.files import NoData, listing
from analysis.loading.probes import SUMMARY, probe_measures, select_axis
from analysis.loading.results import Results, advice
from analysis.plotting.axes import draw_line, plain_log_ticks, whole_ticks
from analysis.plotting.style import (
    INK,
    WIDTH,
    SeriesStyle,
    absent_text,
    band_text,
    dots_text,
    labels_with_data,
    provenance_text,
    styled,
    table_styles,
)
from analysis.statistics import over_seeds, single_heads

FIGURES = (
    Entry(
        "sinks",
        "Attention sinks",
        needs=("measures.first_token_mass",),
        section="Attention",
        place=20,
    ),
)

SINK = 3.0
"""A layer has a sink if its heads, on average, give the first token this many times its share in uniform attention."""

GATES = ("output", "value")
COLUMNS = ("run", "label", "color", "seed", "training_set", "gates", "layer", "head", "value", "uniform")
ACROSS = 3


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer and head: mass (value), that of uniform attention, the model's gates.

    Raises NoData where no run has its mass on the first token over all positions.
    """
    rows = select_axis(probe_measures(results, ("first_token_mass", "first_token_uniform")), SUMMARY)
    place = ["run", "layer"]
    uniform = rows[rows["measure"] == "first_token_uniform"].groupby(place)["value"].mean().rename("uniform")
    masses = rows[rows["measure"].isna() | (rows["measure"] == "first_token_mass")]
    if masses["value"].isna().all():
        raise NoData(f"no run has first_token_mass over all positions; {advice(results)}")
    masses = masses.merge(uniform.reset_index(), on=place, how="left")
    return masses.assign(gates=masses["label"].map(_gates(results, masses)))[list(COLUMNS)]


def _gates(results: Results, masses: pd.DataFrame) -> dict[str, str]:
    """ "output", "value" or "output and value" by label, of those whose layers with attention have such gates."""
    rows = results.table("measures").merge(masses[["run", "layer"]].drop_duplicates(), on=["run", "layer"])
    labels = {gate: set(rows.loc[rows["measure"] == f"{gate}_gate_mean", "label"]) for gate in GATES}
    return {
        label: " and ".join(gate for gate in GATES if label in labels[gate])
        for label in set().union(*labels.values())
    }


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw the mean over heads of all models above; below, model by model, also single heads as dots."""
    labels, styles = labels_with_data(table), table_styles(table)
    rows = -(-len(labels) // ACROSS)
    figure = Figure(figsize=(WIDTH, 2.7 + 1.35 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1 + rows, ACROSS, height_ratios=[2.3] + [1] * rows)
    top = figure.add_subplot(grid[0, :])
    top.set(xlabel="layer (from 0)", ylabel="share of attention\non the first token")
    top.set_title("all models, mean over heads")
    single = [
        figure.add_subplot(grid[1 + n // ACROSS, n % ACROSS], sharex=top, sharey=top)
        for n in range(len(labels))
    ]
    for place, (axes, label) in enumerate(zip(single, labels, strict=True)):
        mine = table[table["label"] == label]
        _draw_heads(axes, mine, styles[label])
        for each in (top, axes):
            draw_line(each, over_seeds(mine, "layer"), styles[label], label)
            _draw_uniform(each, mine)
        axes.set_title(_title(label, mine["gates"].iloc[0]), fontsize=8)
        axes.tick_params(
            labelsize=8, labelleft=place % ACROSS == 0, labelbottom=place + ACROSS >= len(labels)
        )
        if place + ACROSS >= len(labels):
            axes.set_xlabel("layer", fontsize=8)
        if place % ACROSS == 0:
            axes.set_ylabel("share", fontsize=8)
    _scale(top)
    return figure


def _title(label: str, gates: str) -> str:
    return textwrap.fill(f"{label} ({gates} gate)" if pd.notna(gates) else label, 20)


def _draw_heads(axes: Axes, rows: pd.DataFrame, series_style: SeriesStyle) -> None:
    heads = single_heads(rows)
    axes.plot(
        heads["layer"].astype("float64"),
        heads["value"],
        "o",
        color=series_style.color,
        markersize=3,
        alpha=0.5,
        markeredgewidth=0,
        label="_heads",
    )


def _draw_uniform(axes: Axes, rows: pd.DataFrame) -> None:
    for value in sorted(set(rows["uniform"].dropna().round(6))):
        axes.axhline(value, color=INK, linestyle="--", linewidth=1, label="_uniform")


def _scale(axes: Axes) -> None:
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    whole_ticks(axes.xaxis, 7)


def strongest(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return each label's place (`by`) of one run with the largest ratio of its mass to the uniform one.

    Columns: the place, seed, value, times; runs: how many were probed, sinks: how many reach SINK somewhere. Runs
    are never averaged: a head's number means nothing beyond its run.
    """
    rows = table.dropna(subset=["value", "uniform"])
    means = rows.groupby(["label", "run", "seed", *by], dropna=False)[["value", "uniform"]].mean()
    means = means.reset_index()
    means["times"] = means["value"] / means["uniform"]
    highest = means.groupby(["label", "run"])["times"].max().groupby("label")
    top = means.loc[means.groupby("label")["times"].idxmax()].set_index("label")
    return top.assign(runs=highest.size(), sinks=highest.agg(lambda times: (times >= SINK).sum()))


def _verdict(table: pd.DataFrame) -> str:
    layers, heads = strongest(table, ["layer"]), strongest(table, ["layer", "head"])
    sinks = layers[layers["times"] >= SINK].sort_values("times", ascending=False)
    alone = heads[(heads["times"] >= SINK) & ~heads.index.isin(sinks.index)]
    said = [
        f"{label} ({row.value:.2g} in layer {row.layer}, {row.times:.1f}×{_of_seeds(row)})"
        for label, row in sinks.iterrows()
    ]
    single = [
        f"{label} (layer {row.layer}, head {row['head']}: {row.times:.1f}×{_of_seeds(row)})"
        for label, row in alone.iterrows()
    ]
    if not said and not single:
        return f"No model has a sink: no head reaches {SINK:g}× uniform"
    if not said:
        return f"No layer's mean over heads reaches {SINK:g}× uniform, but single heads do in {listing(single, 20)}"
    text = f"Sinks (a layer's mean over heads at {SINK:g}× uniform or more): {listing(said, 20)}"
    return text + (f"; single heads reach that in {listing(single, 20)}" if single else "")


def _of_seeds(row: pd.Series) -> str:
    """Name the seed with the strongest sink and the number of seeds with one; "" where there is one seed."""
    return f" with seed {row.seed}; in {row.sinks} of {row.runs} seeds" if row.runs > 1 else ""


def caption(table: pd.DataFrame) -> str:
    """Describe lines and dots, and name the models with a sink and those with gated attention."""
    uniform = sorted(set(table["uniform"].dropna().round(4)))
    gated = table.dropna(subset=["gates", "run"])["label"].unique()
    return (
        f"Lines: mean over heads ({band_text(table)}); dots: {dots_text(table)}. Dashed: uniform attention "
        f"({listing(f'{value:.3g}' for value in uniform)}). {_verdict(table)}. "
        f"Gates on output or value: {listing(gated, 20)}. "
        f"{absent_text(table, 'No attention shown')}{provenance_text(table)}"
    )
