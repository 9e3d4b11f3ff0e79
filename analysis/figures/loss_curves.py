"""Loss against training tokens, training FLOPs or training time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from analysis.caveats import conditions
from analysis.figure_entry import TEXT, Entry
from analysis.files import NoData, listing
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.style import (
    INK,
    SeriesStyle,
    legend_below,
    legend_entry,
    new_figure,
    provenance_text,
    rates_text,
    styled,
    table_styles,
)
from analysis.statistics import curves_over_seeds

FIGURES = (
    Entry(
        "loss_against_tokens",
        "Loss while training",
        needs=("metrics.tokens", "metrics.loss"),
        section="Quality",
        place=10,
        of=TEXT,
        compares=True,
    ),
    Entry(
        "loss_against_flops",
        "Loss against compute",
        needs=("metrics.tokens", "metrics.loss", "runs.flops_training"),
        section="Quality",
        place=20,
        of=TEXT,
        options={"against": "flops"},
        compares=True,
    ),
    Entry(
        "loss_against_time",
        "Loss against time",
        needs=("metrics.seconds", "metrics.loss"),
        section="Quality",
        place=30,
        of=TEXT,
        options={"against": "seconds"},
        compares=True,
    ),
)

COLUMNS = (
    "run",
    "label",
    "color",
    "seed",
    "rates",
    "training_set",
    "validation_set",
    "machine",
    "company",
    "tokens",
    "flops",
    "seconds",
    "split",
    "loss",
)
AXIS = {"tokens": "training tokens", "flops": "training compute (FLOPs)", "seconds": "training time (s)"}
ZOOM_FROM = 2 / 3


def table(results: Results, against: str = "tokens") -> pd.DataFrame:
    """Make the table: one row per recorded loss; flops = tokens · FLOPs a token, seconds as in `_times`.

    Raises NoData where no run has a row of validation.
    """
    runs = best_rates(results).rename(columns={"steps": "last_step", "seconds": "last_second"})
    runs["machine"] = runs["gpu"].fillna(runs["cpu"]) + ", " + runs["threads"].astype("string") + " thread(s)"
    runs["company"] = conditions(runs)
    wanted = ["rates", "color", "training_set", "validation_set", "machine", "company"]
    wanted += ["flops_training", "last_step", "last_second"]
    joined = results.metrics.merge(runs[["experiment", "run", *wanted]], on=["experiment", "run"])
    joined["flops"] = joined["tokens"].astype("float64") * joined["flops_training"]
    joined["seconds"] = pd.concat([_times(rows) for _, rows in joined.groupby(["experiment", "run"])])
    joined = joined.dropna(subset=[against, "loss"])[list(COLUMNS)].reset_index(drop=True)
    if not (joined["split"] == "validation").any():
        raise NoData("no run has a validation row in its metrics.csv")
    return joined.astype({"tokens": "float64"})


def _times(rows: pd.DataFrame) -> pd.Series:
    """Training seconds at the rows of a run: interpolated by step where a row has none, as validation rows have."""
    known = rows.dropna(subset=["step", "seconds"]).sort_values("step")
    steps, seconds = known["step"].astype("float64"), known["seconds"]
    end = rows[["last_step", "last_second"]].iloc[0].astype("float64")
    if known.empty or end.isna().any():
        return rows["seconds"]
    x, y = [0.0, *steps], [0.0, *seconds]
    if end.iloc[0] > x[-1]:
        x, y = [*x, end.iloc[0]], [*y, end.iloc[1]]
    interpolated = np.interp(rows["step"].astype("float64"), x, y)
    return rows["seconds"].fillna(pd.Series(interpolated, index=rows.index))


@styled
def draw(table: pd.DataFrame, against: str = "tokens") -> Figure:
    """Draw validation loss (strong) and training loss (faint); below, the validation loss of late training.

    table: COLUMNS, one row per recorded loss. Mean over seeds, band from the lowest to the highest seed. Late is
    from two thirds of the shortest model's training on. Raises NoData where no seeds of a model overlap.
    """
    styles = table_styles(table)
    figure, (full, zoom) = new_figure(4.9 + 0.21 * ((len(styles) + 3) // 2), rows=2, height_ratios=(1, 1))
    order = _by_final_loss(table)
    validation = {}
    for label in order:
        rows = table[table["label"] == label]
        training = curves_over_seeds(rows[rows["split"] == "train"], against, "loss")
        _draw_training(full, training, styles[label], label)
        validation[label] = curves_over_seeds(rows[rows["split"] == "validation"], against, "loss")
        for axes in (full, zoom):
            _draw_validation(axes, validation[label], styles[label], label)
    drawn = [losses for losses in validation.values() if len(losses)]
    if not drawn:
        raise NoData(f"the seeds of no model share {AXIS[against]}: validate more often (trainer.val_every)")
    full.set_title("whole training")
    zoom.set_title("late training, validation only")
    _zoom(zoom, drawn)
    for axes in (full, zoom):
        axes.set_ylabel("loss (nats/token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    zoom.set_xlabel(AXIS[against])
    faint = Line2D([], [], color=INK, alpha=0.35, linewidth=1, label="training loss")
    legend_below(figure, [*(legend_entry(label, styles[label], markersize=4) for label in order), faint])
    return figure


def _by_final_loss(table: pd.DataFrame) -> list[str]:
    """Labels, the lowest last validation loss first; those without a validation row last."""
    last = (
        table[table["split"] == "validation"].sort_values("tokens").groupby(["label", "seed"])["loss"].last()
    )
    ranked = last.groupby("label").mean().sort_values().index
    return [*ranked, *(label for label in table["label"].unique() if label not in ranked)]


def _draw_training(axes: Axes, losses: pd.DataFrame, series_style: SeriesStyle, label: str) -> None:
    faint = {"color": series_style.color, "alpha": 0.3, "linewidth": 0.9}
    axes.plot(losses.index, losses["mean"], label=f"{label}, training", **faint)


def _draw_validation(axes: Axes, losses: pd.DataFrame, series_style: SeriesStyle, label: str) -> None:
    axes.fill_between(
        losses.index, losses["min"], losses["max"], color=series_style.color, alpha=0.12, linewidth=0
    )
    style = {
        "color": series_style.color,
        "linestyle": series_style.linestyle,
        "marker": series_style.marker,
        "markersize": 4,
    }
    axes.plot(losses.index, losses["mean"], markevery=max(1, len(losses) // 10), label=label, **style)


def _zoom(axes: Axes, curves: list[pd.DataFrame]) -> None:
    start, end = (
        ZOOM_FROM * min(curve.index.max() for curve in curves),
        max(curve.index.max() for curve in curves),
    )
    late = pd.concat([curve[curve.index >= start] for curve in curves])
    margin = 0.12 * (late["max"].max() - late["min"].min()) or 0.05
    axes.set_xlim(start - 0.02 * (end - start), end + 0.02 * (end - start))
    axes.set_ylim(late["min"].min() - margin, late["max"].max() + margin)


def caption(table: pd.DataFrame, against: str = "tokens") -> str:
    """Describe lines and bands, and name seeds and text; for times also the machine."""
    several = table.groupby("label")["seed"].nunique().max() > 1
    lines = (
        "Strong lines: mean validation loss, as far as all seeds go; bands: lowest to highest seed"
        if several
        else "Strong lines: validation loss (one seed: no band)"
    )
    machines = f"{listing(table['machine'].dropna().unique())}, {listing(table['company'].unique())}"
    return (
        f"{lines}. Faint lines: training loss, the mean since the last point.{rates_text(table)} "
        f"{_EXPLAINED[against].format(machines=machines)}{provenance_text(table)} "
        f"Validated on the validation split of {listing(table['validation_set'].dropna().unique())}."
    )


_EXPLAINED = {
    "tokens": "",
    "flops": "Compute: tokens times the FLOPs of a token's forward and backward pass at the trained length. ",
    "seconds": "Time: of the training steps alone, on {machines}. ",
}
