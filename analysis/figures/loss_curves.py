"""Loss against training tokens."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from analysis.comparison import unique_seeds
from analysis.errors import NoData
from analysis.results import Results
from analysis.style import INK, Look, legend_below, looks, new_figure, seeds_text, styled
from analysis.units import listing

COLUMNS = ("label", "color", "seed", "training_set", "validation_set", "tokens", "split", "loss")
ZOOM_FROM = 2 / 3


def table(results: Results) -> pd.DataFrame:
    """Every loss of every run, once a seed, with the run's label and colour."""
    runs = unique_seeds(results.runs)[["experiment", "run", "color", "training_set", "validation_set"]]
    joined = results.metrics.merge(runs, on=["experiment", "run"])
    joined = joined.dropna(subset=["tokens", "loss"])[list(COLUMNS)].reset_index(drop=True)
    if not (joined["split"] == "validation").any():
        raise NoData("no run has a validation row in its metrics.csv")
    return joined.astype({"tokens": "float64"})


def over_seeds(losses: pd.DataFrame) -> pd.DataFrame:
    """mean, min and max of the loss by tokens (the index), at the token counts that every seed has."""
    grouped = losses.groupby("tokens")["loss"].agg(["mean", "min", "max", "count"])
    return grouped[grouped["count"] == losses["seed"].nunique(dropna=False)].drop(columns="count")


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Validation loss (strong) and training loss (faint); below, the validation loss of the last third.

    table: COLUMNS, one row per recorded loss. Mean over seeds, band from the lowest to the highest seed.
    """
    styles = looks(table[["label", "color"]].drop_duplicates().itertuples(index=False, name=None))
    height = 4.9 + 0.21 * ((len(styles) + 3) // 2)
    figure, (whole, zoom) = new_figure(height, rows=2, height_ratios=(3, 2))
    order = _by_final_loss(table)
    for label in order:
        rows = table[table["label"] == label]
        _draw_training(whole, rows[rows["split"] == "train"], styles[label], label)
        for axes in (whole, zoom):
            _draw_validation(axes, rows[rows["split"] == "validation"], styles[label], label)
    whole.set_title("whole training")
    zoom.set_title("last third, validation only")
    _zoom(zoom, table)
    for axes in (whole, zoom):
        axes.set_ylabel("loss (nats/token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    zoom.set_xlabel("training tokens")
    legend_below(
        figure,
        [
            *_legend({label: styles[label] for label in order}),
            Line2D([], [], color=INK, alpha=0.35, linewidth=1, label="training loss"),
        ],
    )
    return figure


def _by_final_loss(table: pd.DataFrame) -> list[str]:
    """Labels, the lowest last validation loss first; those without a validation row last."""
    last = (
        table[table["split"] == "validation"].sort_values("tokens").groupby(["label", "seed"])["loss"].last()
    )
    ranked = last.groupby("label").mean().sort_values().index
    return [*ranked, *(label for label in table["label"].unique() if label not in ranked)]


def _draw_training(axes: Axes, rows: pd.DataFrame, look: Look, label: str) -> None:
    training = over_seeds(rows)
    axes.plot(
        training.index,
        training["mean"],
        color=look.color,
        alpha=0.3,
        linewidth=0.9,
        label=f"{label}, training",
    )


def _draw_validation(axes: Axes, rows: pd.DataFrame, look: Look, label: str) -> None:
    losses = over_seeds(rows)
    axes.fill_between(losses.index, losses["min"], losses["max"], color=look.color, alpha=0.15, linewidth=0)
    axes.plot(
        losses.index,
        losses["mean"],
        color=look.color,
        linestyle=look.linestyle,
        marker=look.marker,
        markersize=4,
        markevery=max(1, len(losses) // 10),
        label=label,
    )


def _zoom(axes: Axes, table: pd.DataFrame) -> None:
    validation = table[table["split"] == "validation"]
    start, end = ZOOM_FROM * validation["tokens"].max(), validation["tokens"].max()
    late = validation.loc[validation["tokens"] >= start, "loss"]
    margin = 0.12 * (late.max() - late.min()) or 0.05
    axes.set_xlim(start - 0.02 * (end - start), end + 0.02 * (end - start))
    axes.set_ylim(late.min() - margin, late.max() + margin)


def _legend(styles: dict[str, Look]) -> list[Line2D]:
    return [
        Line2D(
            [], [], color=look.color, linestyle=look.linestyle, marker=look.marker, markersize=4, label=label
        )
        for label, look in styles.items()
    ]


def caption(table: pd.DataFrame) -> str:
    """What is drawn, over which seeds, trained on what."""
    several = table.groupby("label")["seed"].nunique().max() > 1
    lines = (
        "Strong lines: mean validation loss, as far as all seeds go; bands: lowest to highest seed"
        if several
        else "Strong lines: validation loss (one seed: no band)"
    )
    return (
        f"{lines}. Faint lines: training loss, the mean since the last point. "
        f"{seeds_text(table['seed'].dropna()).capitalize()}. "
        f"Trained on {listing(table['training_set'].dropna().unique())}, "
        f"validated on the validation split of {listing(table['validation_set'].dropna().unique())}."
    )
