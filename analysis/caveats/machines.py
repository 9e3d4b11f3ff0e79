"""Comparison of the same runs on two machines, whose numbers differ by rounding.

A run's id says nothing of the machine it trained on. Another processor, or other instructions of the same one, sums in
another order; training multiplies the difference.
"""

from __future__ import annotations

import math

import pandas as pd

from analysis.comparing.comparison_table import NAMES, order_metric, with_final_validation
from analysis.errors import ResultsError
from analysis.loading.results import PathLike, Results, load_results
from analysis.units import listing, number, whole


def place(runs: pd.DataFrame) -> pd.Series:
    """Return the machine of each run as text: processor or GPU, its instructions, threads."""
    instructions = runs["capability"].map(lambda known: "" if pd.isna(known) else f", {known}")
    return runs["gpu"].fillna(runs["cpu"]) + instructions + ", " + runs["threads"].map(whole) + " thread(s)"


def across_machines(a: Results | PathLike, b: Results | PathLike) -> pd.DataFrame:
    """Return a row a run that both results hold: run, label, seed, loss_a, loss_b, difference (b − a), rank_a, rank_b.

    The loss is what orders the models of a (nats/token, or bits per byte); attrs["metric"] names it. A rank is the
    model's, from 1, by its mean over the runs that both hold. Columns machine_a and machine_b say where each ran.
    Raises ResultsError where there is no common run.
    """
    first, second = (
        with_final_validation(one if isinstance(one, Results) else load_results(one)) for one in (a, b)
    )
    metric = order_metric(first)
    halves = [
        runs.assign(machine=place(runs), loss=runs[metric]).drop_duplicates("run").dropna(subset=["loss"])
        for runs in (first, second)
    ]
    columns = ["run", "loss", "machine"]
    both = halves[0][["label", "seed", *columns]].merge(halves[1][columns], on="run", suffixes=("_a", "_b"))
    if both.empty:
        raise ResultsError("no run is in both results: their ids (content hashes) have none in common")
    both["difference"] = both["loss_b"] - both["loss_a"]
    for side in ("a", "b"):
        means = both.groupby("label")[f"loss_{side}"].mean().rank(method="min").astype("int64")
        both[f"rank_{side}"] = both["label"].map(means)
    order = [
        "run",
        "label",
        "seed",
        "loss_a",
        "loss_b",
        "difference",
        "rank_a",
        "rank_b",
        "machine_a",
        "machine_b",
    ]
    found = both.sort_values(["rank_a", "label", "seed"], ignore_index=True)[order]
    found.attrs["metric"] = metric
    return found


def models_across_machines(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `across_machines` by model: means over seeds, their difference, the largest of a run, spread of seeds.

    seeds_a, seeds_b: the highest seed's loss minus the lowest's on each machine; n_seeds: how many both have.
    """
    grouped = runs.groupby("label", sort=False)
    found = grouped.agg(
        loss_a=("loss_a", "mean"),
        loss_b=("loss_b", "mean"),
        largest_of_a_run=("difference", lambda values: values.loc[values.abs().idxmax()]),
        seeds_a=("loss_a", _spread),
        seeds_b=("loss_b", _spread),
        n_seeds=("seed", "nunique"),
        rank_a=("rank_a", "first"),
        rank_b=("rank_b", "first"),
    )
    found.insert(2, "difference", found["loss_b"] - found["loss_a"])
    return found.reset_index()


def _spread(values: pd.Series) -> float:
    """Return the range of the seeds' values; NaN for a single seed."""
    return values.max() - values.min() if len(values) > 1 else math.nan


def caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats about the number of machines, and the differences between them on the same runs."""
    places = place(runs)
    if places.nunique() <= 1:
        return [
            f"numbers of one machine ({listing(places.unique())}): another processor, or others of its instructions, "
            "rounds otherwise, which may move a trained loss by as much as a seed does; "
            "analysis.across_machines compares the same runs."
        ]
    counts = places.value_counts()
    each = listing(f"{name} ({n} run{'s' * int(n > 1)})" for name, n in counts.items())
    found = [
        f"mixed machines, so speeds and memory cannot be compared, and losses differ by rounding too: {each}."
    ]
    return found + _repeated(runs.assign(place=places))


def _repeated(runs: pd.DataFrame) -> list[str]:
    """Caveat about runs that were trained on several machines and count once."""
    there = runs.drop_duplicates(["run", "place"])
    again = there[there.duplicated("run", keep=False)]
    if again.empty:
        return []
    metric = order_metric(runs)
    spread = again.groupby("run")[metric].agg(lambda values: values.max() - values.min())
    widest = again.loc[again["run"] == spread.idxmax()].iloc[0] if spread.notna().any() else None
    apart = (
        ""
        if widest is None
        else f" The {NAMES[metric]} differs by up to {number(spread.max())} ({widest.label} seed {whole(widest.seed)})."
    )
    return [
        f"{again['run'].nunique()} run(s) are there from several machines, under one id; the first found counts, and "
        f"analysis.across_machines compares them.{apart}"
    ]
