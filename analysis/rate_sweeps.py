"""Sweeps of learning rates: a sweep counts as one model, at its best rate."""

from __future__ import annotations

import pandas as pd

from analysis.loading.columns import RATES
from analysis.loading.labels import labels
from analysis.loading.results import Results

LOWEST = "lowest_validation_loss"
"""The metric that chooses a rate: see `with_lowest_validation`."""


def unique_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated (setting, seed) pairs: a run found in two experiments is one sample, not two."""
    return runs.drop_duplicates(["setting", "seed"])


def with_lowest_validation(results: Results) -> pd.DataFrame:
    """Add the column lowest_validation_loss to the runs: the lowest validation loss in their metrics."""
    metrics = results.metrics
    lowest = metrics[metrics["split"] == "validation"].groupby(["experiment", "run"])["loss"].min()
    return results.runs.join(lowest.rename(LOWEST), on=["experiment", "run"])


def sweeps_as_models(runs: pd.DataFrame) -> pd.DataFrame:
    """Treat each sweep as one model: drop repeated (setting, seed) pairs and add two columns.

    model: the label without rates; rates: the number of settings tried.
    """
    tried = runs.groupby("sweep")["setting"].transform("nunique")
    return unique_seeds(runs.assign(model=labels(runs, "sweep", RATES), rates=tried))


def best_rates(results: Results) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `sweeps_as_models`."""
    return at_best_rates(with_lowest_validation(results))


def at_best_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `sweeps_as_models` and edge.

    The best has the lowest mean over seeds of LOWEST, the runs' lowest validation loss (the test loss chooses nothing),
    among the rates with the most seeds: where one seed chose and others followed, those followed the choice.
    A model without validation rows keeps all its rates. edge: the best is the lowest or the highest of several rates.
    runs: with the column LOWEST; without it, Results.runs and their loss on the whole validation split.
    """
    runs = sweeps_as_models(runs)
    scores = runs.groupby(["sweep", "setting"])[LOWEST if LOWEST in runs else "validation_loss"]
    found = scores.agg(["mean", "count"]).dropna()
    most = found.groupby("sweep")["count"].transform("max")
    best = found.loc[found["count"] == most, "mean"].groupby("sweep").idxmin().str[1]
    rates = runs.groupby("sweep")["lr"]
    outer = (runs["lr"] == rates.transform("min")) | (runs["lr"] == rates.transform("max"))
    runs = runs.assign(edge=outer & (rates.transform("nunique") > 1))
    return runs[runs["setting"] == runs["sweep"].map(best).fillna(runs["setting"])]
