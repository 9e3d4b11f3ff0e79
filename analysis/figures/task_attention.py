"""Attention at the places where a synthetic task asks for an answer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_entry import TASKS, Entry
from analysis.files import listing
from analysis.loading.probes import SUMMARY, best_rates, probe_measures, select_axis
from analysis.loading.results import Results
from analysis.plotting.axes import draw_line, layer_axis, task_panels, tasks_text
from analysis.plotting.style import SeriesStyle, dots_text, legend_below, legend_entries, styled, table_styles
from analysis.statistics import over_seeds, single_heads

FIGURES = (
    Entry(
        "task_attention",
        "Attention to the answer",
        needs=("measures.answer_mass",),
        section="Tasks",
        place=50,
        of=TASKS,
    ),
)

COLUMNS = ("run", "model", "color", "seed", "task", "layer", "head", "value", "chance", "training_set")


def table(results: Results) -> pd.DataFrame:
    """Make the table: a row per run, layer and head; value: share of attention, chance: that of uniform attention."""
    rows = select_axis(probe_measures(results, ("answer_mass", "answer_uniform")), SUMMARY).dropna(
        subset=["run"]
    )
    runs = best_rates(results)[["run", "model", "task"]]
    rows = rows.merge(runs, on="run")
    uniform = rows[rows["measure"] == "answer_uniform"].groupby("task")["value"].mean()
    masses = rows[rows["measure"] == "answer_mass"]
    return masses.assign(chance=masses["task"].map(uniform))[list(COLUMNS)].reset_index(drop=True)


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw the best head of each layer as a line, the mean over seeds, and all heads as dots; a panel a task."""
    styles = table_styles(table, "model")
    figure, places = task_panels(table, 0.21 * ((len(styles) + 1) // 2), "attention (share)")
    for (task, model), rows in table.groupby(["task", "model"]):
        _draw_model(places[task], rows, styles[model], model)
    for axes in places.values():
        layer_axis(axes, 5)
        axes.margins(x=0.08)
    legend_below(figure, legend_entries(styles))
    return figure


def _draw_model(axes: Axes, rows: pd.DataFrame, style: SeriesStyle, model: str) -> None:
    heads = single_heads(rows)
    dots = {"markersize": 3, "alpha": 0.5, "markeredgewidth": 0, "label": "_heads"}
    axes.plot(heads["layer"].astype("float64"), heads["value"], "o", color=style.color, **dots)
    best = rows.groupby(["run", "layer"])["value"].max().reset_index()
    draw_line(axes, over_seeds(best, "layer"), style, model)


def caption(table: pd.DataFrame) -> str:
    """Explain the share, name the strongest head of each model and task, seeds and tasks."""
    best = table.loc[table.groupby(["task", "model"])["value"].idxmax()]
    sentences = [
        f"{row.model} on {row.task} {row.value:.2f} (layer {row.layer}, head {row.head}, seed {row.seed})"
        for row in best.itertuples()
    ]
    dots = dots_text(table.assign(label=table["model"]))
    return (
        "Share of a question's attention on earlier places that hold the token to answer, over questions whose answer "
        "was seen. A head that copies the answer has 1; where answers are computed rather than copied (parity, "
        "products) the share says nothing. Lines: the best head of each layer, mean over seeds, bands: lowest to "
        f"highest seed; dots: {dots}; dashed: attention to all places alike. Strongest heads: "
        f"{listing(sentences, 20)}. Mixers without attention weights have none. {tasks_text(table)}"
    )
