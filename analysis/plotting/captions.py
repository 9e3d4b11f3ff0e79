"""Sentences that captions share: seeds and texts, bands and dots, models without data."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.units import listing, visible

QUOTED = 160
"""So many characters of a sentence are quoted in a caption."""


def seeds_text(seeds: Iterable) -> str:
    """Format seeds as "seed 0" or "seeds 0, 1"."""
    known = sorted({int(seed) for seed in seeds if seed == seed and seed is not None})
    return f"seed{'s' * (len(known) != 1)} {', '.join(map(str, known)) or 'not recorded'}"


def provenance_text(table: pd.DataFrame) -> str:
    """Name seeds and training text: "Seeds 0, 1. Trained on pydocs", with a full stop."""
    seeds = seeds_text(table["seed"].dropna()).capitalize()
    return f"{seeds}. Trained on {listing(table['training_set'].dropna().unique())}."


def test_set_text(table: pd.DataFrame) -> str:
    """Name the test text: "Tested on the test split of pydocs", with a full stop."""
    return f"Tested on the test split of {listing(table['test_set'].dropna().unique())}."


def split_text(table: pd.DataFrame) -> str:
    """Name the split that probes read: "the test split", or "held-out text" where tables do not say."""
    names = sorted(table["split"].dropna().unique())
    return f"the {listing(names)} split{'s' * (len(names) > 1)}" if names else "held-out text"


def sentence_text(table: pd.DataFrame) -> str:
    """Name the probed sentence: "the sentence “The lazy dog”", or "one held-out sentence" where none was given."""
    texts = [visible(text) for text in table["given"].dropna().unique()]
    shown = [f"“{text if len(text) <= QUOTED else text[: QUOTED - 1] + '…'}”" for text in texts]
    if shown and table["given"].isna().any():
        shown.append("a held-out one")
    return f"the sentence{'s' * (len(shown) > 1)} {listing(shown)}" if shown else "one held-out sentence"


def rates_text(table: pd.DataFrame) -> str:
    """Return a sentence on the rates that ``best_rates`` left out; "" if each model had one rate."""
    if (table["rates"] == 1).all():
        return ""
    return " Of the learning rates tried, each model has the one with its lowest validation loss."


def labels_with_data(table: pd.DataFrame) -> list[str]:
    """Return the labels that have something to draw, in the table's order."""
    return list(table.loc[table["run"].notna(), "label"].unique())


def absent_text(table: pd.DataFrame, what: str) -> str:
    """Return "No attention: mesanet and mom. ", or "" where every model has data."""
    missing = [label for label in table["label"].unique() if label not in labels_with_data(table)]
    return f"{what}: {listing(missing, 20)}. " if missing else ""


def band_text(table: pd.DataFrame) -> str:
    """Return the meaning of lines and bands over seeds, or "one seed: no band"."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"


def dots_text(table: pd.DataFrame) -> str:
    """Return the meaning of the dots of `single_heads`."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "single heads of each seed" if several else "single heads"
