"""Sweeps of learning rates: a sweep counts as one model, at its best rate."""

from __future__ import annotations

import pandas as pd

from analysis.comparison import unique_seeds
from analysis.loading.columns import RATES
from analysis.loading.labels import labels
from analysis.loading.results import Results


def sweeps_as_models(runs: pd.DataFrame) -> pd.DataFrame:
    """Treat each sweep as one model: drop repeated (setting, seed) pairs and add two columns.

    model: the label without rates; rates: the number of settings tried.
    """
    tried = runs.groupby("sweep")["setting"].transform("nunique")
    return unique_seeds(runs.assign(model=labels(runs, "sweep", RATES), rates=tried))


def best_rates(results: Results) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `sweeps_as_models`.

    The best has the lowest mean over seeds of a run's validation loss (`validation_losses`; the test loss chooses
    nothing).
    A model without validation rows keeps all its rates.
    """
    runs = sweeps_as_models(results.runs)
    scores = runs.join(validation_losses(results)).groupby(["sweep", "setting"])["selecting"].mean()
    best = scores.dropna().groupby("sweep").idxmin().str[1]
    return runs[runs["setting"] == runs["sweep"].map(best).fillna(runs["setting"])]


def validation_losses(results: Results) -> pd.Series:
    """Return the loss that selects settings, "selecting", by row of ``results.runs``.

    It is that of the whole validation split where every run has one, else the lowest one while training (which may
    cover a part of the split); missing for runs that were never validated.
    """
    runs, metrics = results.runs, results.metrics
    if runs["validation_loss"].notna().all():
        return runs["validation_loss"].rename("selecting")
    lowest = metrics[metrics["split"] == "validation"].groupby(["experiment", "run"])["loss"].min()
    return runs.join(lowest.rename("selecting"), on=["experiment", "run"])["selecting"]
