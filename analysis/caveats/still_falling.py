"""Caveats of runs that ended while their loss was still falling: longer training may change who is ahead."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.loading.rate_sweeps import unique_seeds
from analysis.loading.results import Results
from analysis.significance.spread import spread_of
from analysis.units import listing

LAST = 0.2
"""The share of the training steps over which a fall is looked for."""

LEAST = 0.01
"""A fall (nats/token) below this is none, however well the seeds agree."""


def caveats(results: Results) -> list[str]:
    """Caveats about models whose validation loss fell by more, at the end, than the seeds of a model differ.

    Of synthetic tasks one a task.
    """
    text, tasks = results.of_text, results.of_tasks
    parts = [(text, "nats/token")] + [
        (tasks.part(tasks.runs["task"] == task), "nats/answer") for task in tasks.runs["task"].unique()
    ]
    return [said for part, unit in parts if len(part.runs) for said in _of_one(part, unit)]


def _of_one(results: Results, unit: str) -> list[str]:
    falls = last_falls(results)
    apart = seeds_apart(results).reindex(falls.index)
    falling = falls[falls > np.fmax(LEAST, apart)].sort_values(ascending=False)
    if falling.empty:
        return []
    each = listing((f"{label} {fall:.3f}" for label, fall in falling.items()), limit=6)
    return [
        f"still falling: in the last {LAST:.0%} of its steps the validation loss fell by, in {unit}: {each}"
        f"{_seeds(apart[falling.index].dropna())}. Longer training may change the order."
    ]


def _seeds(apart: pd.Series) -> str:
    if apart.empty:
        return ""
    least, most = f"{apart.min():.3f}", f"{apart.max():.3f}"
    differ = least if least == most else f"{least} to {most}"
    return f" (seeds of one model differ by {differ}, standard deviation)"


def last_falls(results: Results) -> pd.Series:
    """Return by label the fall (nats/token) of the validation loss over the LAST of the planned steps, mean over seeds.

    Between two validations it is interpolated; runs that were not validated before that, or that stopped early, are
    left out.
    """
    runs = unique_seeds(results.runs[results.runs["stopped"] != "early"])
    rows = results.metrics[results.metrics["split"] == "validation"].dropna(subset=["loss", "step"])
    falls = {}
    for (experiment, run), curve in rows.groupby(["experiment", "run"]):
        curve = curve.sort_values("step")
        steps, losses = (curve[name].to_numpy("float64") for name in ("step", "loss"))
        begin = (1 - LAST) * steps[-1]
        if steps[0] <= begin:
            falls[experiment, run] = np.interp(begin, steps, losses) - losses[-1]
    own = runs.set_index(["experiment", "run"])["label"]
    known = (
        pd.Series(falls, dtype="float64").reindex(own.index) if falls else pd.Series(np.nan, index=own.index)
    )
    return known.groupby(own).mean().dropna()


def seeds_apart(results: Results) -> pd.Series:
    """Return by label the deviation between seeds of the last validation loss, shared by models that are not too noisy.

    Seeds of one setting; of several settings under one label the largest. NaN where none has two
    seeds; one noisy model has its own, and the others' stays what it is (`spread_of`).
    """
    rows = results.metrics[results.metrics["split"] == "validation"].dropna(subset=["loss"])
    last = rows.sort_values("step", kind="stable").groupby(["experiment", "run"])["loss"].last()
    runs = (
        unique_seeds(results.runs).join(last.rename("last"), on=["experiment", "run"]).dropna(subset=["last"])
    )
    groups = {key: group["last"].to_numpy("float64") for key, group in runs.groupby(["label", "setting"])}
    deviations = spread_of(list(groups.values())).deviations if groups else []
    found = pd.Series(deviations, index=[label for label, _ in groups], dtype="float64")
    return found.groupby(level=0).max()
