"""Measures of the probes beside what a figure needs to know of their runs, averaged over seeds and drawn."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.comparison import unique_seeds
from analysis.errors import NoData
from analysis.probes import advice
from analysis.results import Results
from analysis.style import Look, looks, seeds_text
from analysis.units import listing

OF_RUN = ("experiment", "run", "color", "residual", "depth", "training_set", "seq_len")
COLUMNS = (
    *("run", "name", "label", "color", "residual", "depth", "seed", "training_set", "seq_len"),
    *("layer", "part", "head", "block", "axis", "start", "end", "measure", "value"),
)


def measured(results: Results, names: Collection[str]) -> pd.DataFrame:
    """The rows of these measures, COLUMNS: of each setting and seed one run, of each run the last step.

    Models without any of them have one row with nothing but label and color, so that all figures of these results
    give a model the same look, and captions can say who is missing. Raises NoData if there is no row at all.
    """
    rows = results.table("measures")
    rows = rows[rows["measure"].isin(names) & rows["value"].notna()]
    if rows.empty:
        raise NoData(f"no run has the measure {' or '.join(names)}; {advice(results)}")
    last = rows.groupby(["experiment", "run"])["step"].transform("max")
    rows = rows[(rows["step"] == last).fillna(True)]
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    found = rows.merge(runs[list(OF_RUN)], on=["experiment", "run"])[list(COLUMNS)]
    absent = results.runs[~results.runs["label"].isin(found["label"])].drop_duplicates("label")
    joined = pd.concat([found, absent[["label", "color"]].reindex(columns=COLUMNS).astype(found.dtypes)])
    return joined.reset_index(drop=True)


def present(table: pd.DataFrame) -> list[str]:
    """Labels that have something to draw, in the table's order."""
    return list(table.loc[table["run"].notna(), "label"].unique())


def absent_text(table: pd.DataFrame, what: str) -> str:
    """ "No attention: mesanet and mom. ", or nothing where every model has it."""
    missing = [label for label in table["label"].unique() if label not in present(table)]
    return f"{what}: {listing(missing, 20)}. " if missing else ""


def all_looks(table: pd.DataFrame) -> dict[str, Look]:
    """How each label of the table is drawn."""
    return looks(table[["label", "color"]].drop_duplicates().itertuples(index=False, name=None))


def provenance(table: pd.DataFrame) -> str:
    """ "Seeds 0, 1. Trained on pydocs." """
    seeds = seeds_text(table["seed"].dropna()).capitalize()
    return f"{seeds}. Trained on {listing(table['training_set'].dropna().unique())}."


def band_text(table: pd.DataFrame) -> str:
    """What stands for several seeds, or that there is one."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"


def over_seeds(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """mean, min and max over runs of a run's mean value, by `by` (the index), where every run has one."""
    runs = rows.groupby([by, "run"])["value"].mean().reset_index(by)
    grouped = runs.groupby(by)["value"].agg(["mean", "min", "max", "count"])
    return grouped[grouped["count"] == rows["run"].nunique()].drop(columns="count")


def single_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """run, layer, head, value: heads of one number in two runs have nothing in common, so each run has its own."""
    return rows.groupby(["run", "layer", "head"], dropna=False)["value"].mean().reset_index()


def dots_text(table: pd.DataFrame) -> str:
    """What a dot of `single_heads` stands for."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "single heads of each seed" if several else "single heads"


def draw_line(axes: Axes, spread: pd.DataFrame, look: Look, label: str, **options) -> None:
    """The mean of `over_seeds` against its index, with its band."""
    x = spread.index.to_numpy("float64")
    low, high = spread["min"].to_numpy("float64"), spread["max"].to_numpy("float64")
    axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
    style = {"linestyle": look.linestyle, "marker": look.marker, "markersize": 4, "linewidth": 1.5}
    axes.plot(x, spread["mean"].to_numpy("float64"), color=look.color, label=label, **{**style, **options})


def legend_lines(styles: dict[str, Look], labels: Collection[str]) -> list[Line2D]:
    """An entry a label."""
    return [
        Line2D(
            [], [], color=look.color, linestyle=look.linestyle, marker=look.marker, markersize=4, label=label
        )
        for label, look in styles.items()
        if label in labels
    ]


def doubling_axis(axes: Axes, low: float, high: float) -> None:
    """Powers of two along x from low to high, at most ten of them named, as they are read: 64, 512, 4K."""
    powers = [2**power for power in range(31) if low <= 2**power <= high]
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9 * low, 1.05 * high)
    axes.xaxis.set_major_locator(FixedLocator(powers[:: -(-len(powers) // 10)] or [high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}K" if x >= 1024 else f"{x:g}"))
