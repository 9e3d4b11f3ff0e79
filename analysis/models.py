"""What counts as one model in a figure: a sweep of learning rates is one model, shown at its best rate."""

from __future__ import annotations

import pandas as pd

from analysis.columns import RATES
from analysis.comparison import unique_seeds
from analysis.results import Results, labels
from analysis.style import seeds_text
from analysis.units import listing


def swept(runs: pd.DataFrame) -> pd.DataFrame:
    """Each (setting, seed) once, with ``model``, the label without learning rates, and ``rates``, settings tried."""
    tried = runs.groupby("sweep")["setting"].transform("nunique")
    return unique_seeds(runs.assign(model=labels(runs, "sweep", RATES), rates=tried))


def best_rates(results: Results) -> pd.DataFrame:
    """``swept`` runs, of every model only those with its best learning rate.

    The best has the lowest mean over seeds of a run's lowest validation loss (the test loss chooses nothing).
    A model without validation rows keeps all its rates.
    """
    runs, metrics = swept(results.runs), results.metrics
    lowest = metrics[metrics["split"] == "validation"].groupby(["experiment", "run"])["loss"].min()
    scores = (
        runs.join(lowest.rename("lowest"), on=["experiment", "run"])
        .groupby(["sweep", "setting"])["lowest"]
        .mean()
    )
    best = scores.dropna().groupby("sweep").idxmin().str[1]
    return runs[runs["setting"] == runs["sweep"].map(best).fillna(runs["setting"])]


def rates_text(table: pd.DataFrame) -> str:
    """What ``best_rates`` left out, as a sentence with a leading blank; nothing if there was one rate a model."""
    if (table["rates"] == 1).all():
        return ""
    return " Of the learning rates tried, each model has the one with its lowest validation loss."


def origin_text(table: pd.DataFrame) -> str:
    """ "Seeds 0, 1. Trained on pydocs." """
    seeds, texts = seeds_text(table["seed"].dropna()), table["training_set"].dropna().unique()
    return f"{seeds.capitalize()}. Trained on {listing(texts)}."
