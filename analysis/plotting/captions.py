"""Sentences that captions share: seeds and training text, what a band is, which models have no data."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.units import listing


def seeds_text(seeds: Iterable) -> str:
    """ "seed 0" or "seeds 0, 1"."""
    known = sorted({int(seed) for seed in seeds if seed == seed and seed is not None})
    return f"seed{'s' * (len(known) != 1)} {', '.join(map(str, known)) or 'not recorded'}"


def provenance_text(table: pd.DataFrame) -> str:
    """ "Seeds 0, 1. Trained on pydocs." """
    seeds = seeds_text(table["seed"].dropna()).capitalize()
    return f"{seeds}. Trained on {listing(table['training_set'].dropna().unique())}."


def test_set_text(table: pd.DataFrame) -> str:
    """ "Tested on the whole test split of pydocs." """
    return f"Tested on the whole test split of {listing(table['test_set'].dropna().unique())}."


def rates_text(table: pd.DataFrame) -> str:
    """What ``best_rates`` left out, as a sentence with a leading blank; nothing if there was one rate a model."""
    if (table["rates"] == 1).all():
        return ""
    return " Of the learning rates tried, each model has the one with its lowest validation loss."


def labels_with_data(table: pd.DataFrame) -> list[str]:
    """Labels that have something to draw, in the table's order."""
    return list(table.loc[table["run"].notna(), "label"].unique())


def absent_text(table: pd.DataFrame, what: str) -> str:
    """ "No attention: mesanet and mom. ", or nothing where every model has it."""
    missing = [label for label in table["label"].unique() if label not in labels_with_data(table)]
    return f"{what}: {listing(missing, 20)}. " if missing else ""


def band_text(table: pd.DataFrame) -> str:
    """What stands for several seeds, or that there is one."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"


def dots_text(table: pd.DataFrame) -> str:
    """What a dot of `single_heads` stands for."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "single heads of each seed" if several else "single heads"
