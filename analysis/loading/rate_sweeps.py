"""Sweeps of learning rates: a sweep counts as one model, at its best rate."""

from __future__ import annotations

import pandas as pd

from analysis.loading.columns import RATES
from analysis.loading.labels import labels
from analysis.loading.results import Results
from analysis.loading.tasks import model_names

SELECTING = "selecting"
"""The column of the loss that selects a rate: see `validation_losses`."""


def unique_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated (setting, seed) pairs: a run found in two experiments is one sample, not two."""
    return runs.drop_duplicates(["setting", "seed"])


def sweeps_as_models(runs: pd.DataFrame) -> pd.DataFrame:
    """Treat each sweep as one model: drop repeated (setting, seed) pairs and add two columns.

    model: the label without rates, of runs of synthetic tasks without the task: a model has one name on all of them;
    rates: the number of settings tried.
    """
    tried, of_task = runs.groupby("sweep")["setting"].transform("nunique"), runs["task"].notna()
    model = labels(runs, "sweep", RATES)
    if of_task.any():
        model[of_task] = model_names(runs[of_task])
    return unique_seeds(runs.assign(model=model, rates=tried))


def best_rates(results: Results) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `at_best_rates`."""
    return at_best_rates(with_selection(results))


def at_best_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `sweeps_as_models` and edge.

    The best has the lowest mean over seeds of SELECTING (the test loss chooses nothing), among the rates with the most
    seeds: where one seed chose and others followed, those followed the choice. A model without validation rows keeps
    all its rates. edge: the best is the lowest or the highest of several. Where job=compare recorded how runs were
    selected, rates and edge are those of the record. runs: `with_selection`, or Results.runs.
    """
    runs = sweeps_as_models(runs)
    scores = runs.groupby(["sweep", "setting"])[SELECTING if SELECTING in runs else "validation_loss"]
    found = scores.agg(["mean", "count"]).dropna()
    most = found.groupby("sweep")["count"].transform("max")
    best = found.loc[found["count"] == most, "mean"].groupby("sweep").idxmin().str[1]
    rates = runs.groupby("sweep")["lr"]
    outer = (runs["lr"] == rates.transform("min")) | (runs["lr"] == rates.transform("max"))
    runs = runs.assign(edge=outer & (rates.transform("nunique") > 1))
    if "selected_among" in runs:
        recorded = runs["selected_among"].notna()
        runs.loc[recorded, "rates"] = runs.loc[recorded, "selected_among"].astype("int64")
        runs.loc[recorded, "edge"] = runs.loc[recorded, "selected_at_edge"].astype("bool")
    return runs[runs["setting"] == runs["sweep"].map(best).fillna(runs["setting"])]


def with_selection(results: Results) -> pd.DataFrame:
    """Add to the runs SELECTING, and what job=compare recorded of the selection that they confirm.

    selected_among: the number of rates tried for their model; selected_at_edge: theirs is at an end of those;
    selected_by_seeds: the number of seeds by which it was selected. All are empty for runs of which there is no record.
    """
    tried = results.selection.groupby(["task", "model"])["lr"].transform("nunique")
    chosen = results.selection.assign(tried=tried)[results.selection["chosen"]]
    # By who confirms: a model of one name may stand in the records of several studies.
    seeds = chosen.groupby("confirmed_by")["chosen"].transform("size")
    known = {
        run: (row.tried, row.edge != "", row.seeds)
        for row in chosen.assign(seeds=seeds).itertuples()
        for run in str(row.confirmed_by).split()
    }
    names = ["selected_among", "selected_at_edge", "selected_by_seeds"]
    recorded = [known.get(run, (None,) * len(names)) for run in results.runs["run"]]
    columns = pd.DataFrame(recorded, columns=names, index=results.runs.index, dtype="object")
    return results.runs.join([validation_losses(results), columns])


def validation_losses(results: Results) -> pd.Series:
    """Return the loss that selects settings, "selecting", by row of ``results.runs``.

    It is that of the whole validation split where every run has one, else the lowest one while training (which may
    cover a part of the split); missing for runs that were never validated.
    """
    runs, metrics = results.runs, results.metrics
    if runs["validation_loss"].notna().all():
        return runs["validation_loss"].rename(SELECTING)
    lowest = metrics[metrics["split"] == "validation"].groupby(["experiment", "run"])["loss"].min()
    return runs.join(lowest.rename(SELECTING), on=["experiment", "run"])[SELECTING]
