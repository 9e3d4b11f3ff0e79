"""Relative residual of the conjugate-gradient solver by step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.probes import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import plain_log_ticks, whole_ticks
from analysis.plotting.style import panels, provenance_text, styled

FIGURES = (
    Entry(
        "solver",
        "Residual of the solver",
        needs=("measures.cg_residual",),
        section="Recurrences",
        place=20,
    ),
)

COLUMNS = ("run", "label", "color", "seed", "training_set", "layer", "head", "solver_step", "value")
SHADES = "cividis_r"
NAMED = 8
"""So many layers have room in the legend."""


def table(results: Results) -> pd.DataFrame:
    """Make the table: the relative residual (mean over tokens) per run, layer, head and number of steps."""
    rows = select_axis(probe_measures(results, ("cg_residual",)), "step").dropna(subset=["run"])
    return rows.assign(solver_step=rows["start"].astype("int64"))[list(COLUMNS)]


def residuals(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean residual over heads and seeds, steps by layer."""
    return rows.pivot_table(index="solver_step", columns="layer", values="value", aggfunc="mean")


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel a model, a line a layer, light (first) to dark (last); log scale. table: COLUMNS."""
    labels = list(table["label"].unique())
    figure, grid = panels(len(labels), 1, 2.6, sharex=True, sharey=True)
    layers = sorted(int(layer) for layer in table["layer"].unique())
    shades = colormaps[SHADES](np.linspace(0.15, 1, len(layers)))
    shade = dict(zip(layers, shades, strict=True))
    for label, (axes,) in zip(labels, grid, strict=True):
        curve = residuals(table[table["label"] == label])
        for layer in curve:
            axes.plot(
                curve.index, curve[layer], color=shade[int(layer)], linewidth=1.5, label=f"layer {layer}"
            )
        axes.set(yscale="log", ylabel="relative residual")
        axes.set_title(label)
        whole_ticks(axes.xaxis)
        plain_log_ticks(axes.yaxis)
    grid[-1][0].set_xlabel("steps of conjugate gradients")
    lines = grid[0][0].get_lines()
    figure.legend(handles=lines[:: -(-len(lines) // NAMED)], loc="outside right center", handlelength=1.4)
    return figure


def caption(table: pd.DataFrame) -> str:
    """Define the residual, and give its largest value after the last step."""
    sentences = []
    for label, rows in table.groupby("label", sort=False):
        curve = residuals(rows)
        worst = curve.iloc[-1].max()
        sentences.append(
            f"{label}: at most {worst:.2g} after {curve.index[-1]} steps (layer {curve.iloc[-1].idxmax()})"
        )
    return (
        "‖q − (H + Λ)x‖ / ‖q‖ after so many steps, mean over tokens, heads and seeds; 0 steps: the start value. "
        f"{'; '.join(sentences)}. {provenance_text(table)}"
    )
