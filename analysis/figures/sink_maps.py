"""Attention maps of one sentence."""

from __future__ import annotations

import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.results import Results
from analysis.plotting.sentence_maps import COLUMNS, draw_maps, models_text, sentence_maps
from analysis.plotting.style import provenance_text, sentence_text, styled

FIGURES = (
    Entry(
        "sink_maps",
        "Attention maps: the heads with the most on the first token",
        needs=("table.maps",),
        section="Attention",
        place=30,
    ),
    Entry(
        "sink_maps_mean",
        "Attention maps: mean over heads",
        needs=("table.maps",),
        section="Attention",
        place=40,
        options={"heads": "mean"},
    ),
)

FAINTEST = 1e-3
"""Lower end of the colour scale: the probes leave out weights below this."""

HEADS = ("sink", "mean")


def table(results: Results, heads: str = "sink") -> pd.DataFrame:
    """Make the table: attention maps of three layers a model (heads: "sink", most mass on token 0; or "mean").

    Raises ValueError for other heads.
    """
    if heads not in HEADS:
        raise ValueError(f"heads is {' or '.join(HEADS)}, not {heads!r}")
    maps = sentence_maps(results, "attention")
    shown = _strongest(maps) if heads == "sink" else _mean(maps)
    return shown[list(COLUMNS)].reset_index(drop=True)


def _strongest(maps: pd.DataFrame) -> pd.DataFrame:
    """Select in each layer the head with the most weight on key 0, summed over queries t >= 1."""
    first = maps.assign(mass=maps["weight"].where((maps["key"] == 0) & (maps["query"] > 0), 0.0))
    mass = first.groupby(["label", "layer", "head"])["mass"].sum()
    winners = mass.groupby(["label", "layer"]).idxmax()
    kept = maps.set_index(["label", "layer", "head"]).loc[list(winners)].reset_index()
    return kept.assign(heads="head " + kept["head"].astype("str"))


def _mean(maps: pd.DataFrame) -> pd.DataFrame:
    """Average the weights over the heads; weights that are not in the table count as 0."""
    heads = maps.groupby(["label", "layer"])["head"].transform("nunique")
    shares = maps.assign(weight=maps["weight"] / heads, heads="mean of " + heads.astype("str"))
    by = [column for column in COLUMNS if column != "weight"]
    return shares.groupby(by, sort=False, dropna=False)["weight"].sum().reset_index()


@styled
def draw(table: pd.DataFrame, heads: str = "sink") -> Figure:
    """Draw attention maps on a logarithmic colour scale: a row a model, a column a layer."""
    return draw_maps(table, LogNorm(FAINTEST, 1.0), "weight: share of the query's attention (log scale)")


def caption(table: pd.DataFrame, heads: str = "sink") -> str:
    """Name the heads and runs, and explain the colours."""
    which = "the head with the most mass on the first token" if heads == "sink" else "the mean over heads"
    length = table["query"].max() + 1
    return (
        f"First, middle and last layer with attention; of each {which}. The first {length} tokens of "
        f"{sentence_text(table)}, all models on the same colours; weights below {FAINTEST:g} look like {FAINTEST:g}, "
        f"white is the future. ␣: a space. {models_text(table)} {provenance_text(table)}"
    )
