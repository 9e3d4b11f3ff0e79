"""Keys that sparse attention selects for each query of one sentence."""

from __future__ import annotations

import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis.figure_entry import Entry
from analysis.loading.results import Results
from analysis.plotting.sentence_maps import COLUMNS, draw_maps, models_text, sentence_maps
from analysis.plotting.style import provenance_text, sentence_text, styled

FIGURES = (
    Entry(
        "selected_maps",
        "Selected keys",
        needs=("table.maps",),
        section="Attention",
        place=80,
    ),
)


def table(results: Results) -> pd.DataFrame:
    """Make the table: the share of heads (weight) that select a key, in three layers a model."""
    maps = sentence_maps(results, "selection")
    count = maps.groupby(["label", "layer"])["head"].transform("nunique")
    shares = maps.assign(weight=maps["weight"] / count, heads=_heads(count))
    by = [column for column in COLUMNS if column != "weight"]
    return shares.groupby(by, sort=False, dropna=False)["weight"].sum().reset_index()[list(COLUMNS)]


def _heads(count: pd.Series) -> pd.Series:
    return count.map(lambda n: f"{n} head{'s' * (n > 1)}")


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw selection maps: a row a model, a column a layer."""
    return draw_maps(table, Normalize(0.0, 1.0), "share of heads that may read the key")


def caption(table: pd.DataFrame) -> str:
    """Explain the colours, and give the number of keys a query."""
    pairs = table.groupby(["label", "layer"])["weight"].sum() / (table["query"].max() + 1)
    keys = "; ".join(f"{label} {mean:.1f}" for label, mean in pairs.groupby("label").mean().items())
    return (
        f"First, middle and last layer that selects. The first {table['query'].max() + 1} tokens of "
        f"{sentence_text(table)}; white is the future, ␣ a space. Keys a query and head on average: {keys}. "
        f"{models_text(table)} {provenance_text(table)}"
    )
