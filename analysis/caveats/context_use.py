"""Caveats of models that hardly use their context, whose losses then say little about how they mix tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.errors import NoData
from analysis.loading.probe_measures import probe_measures, select_axis
from analysis.loading.results import Results
from analysis.units import listing

EARLY, LATE = 1 / 8, 1 / 2
"""Positions of the first EARLY of the trained length are compared with those from LATE of it on."""

UNKNOWN = (
    "context not measured: no run has its loss early and late in it, so nothing shows that the models use theirs "
    "(job=probe measures it)."
)


def caveats(results: Results) -> list[str]:
    """Caveats about models whose loss does not fall along the context by more than their seeds differ, or is not known.

    Synthetic tasks are left out: what they ask stands in the context.
    """
    try:
        gains = context_gains(results)
    except NoData:
        of_text = results.runs[results.runs["task"].isna()]
        return [UNKNOWN] if of_text["label"].nunique() > 1 else []
    weak = gains[gains["mean"] <= gains["spread"].fillna(0.0)]
    if weak.empty:
        return []
    each = listing((f"{row.Index} {row.mean:+.3f}" for row in weak.itertuples()), limit=6)
    return [
        f"context hardly used: from the first {EARLY:.0%} of the positions to the second half the loss of the same "
        f"tokens falls by no more than seeds differ (nats/token: {each}), so it says little about how these models mix "
        "tokens."
    ]


def context_gains(results: Results) -> pd.DataFrame:
    """Return by label the mean over seeds of the loss early in the context minus that late in it, and their spread.

    Columns: mean (nats/token, of the same tokens at both places), spread (highest minus lowest seed; missing with one
    seed). Raises NoData where no run has its loss by position.
    """
    rows = select_axis(probe_measures(results, ("loss",)), "position")
    rows = rows[rows["layer"].isna()].dropna(subset=["run"])
    early = rows[rows["end"] <= EARLY * rows["seq_len"]]
    late = rows[(rows["start"] >= LATE * rows["seq_len"]) & (rows["end"] <= rows["seq_len"])]
    gains = (_mean(early) - _mean(late)).dropna()
    if gains.empty:
        raise NoData("no run has its loss at early and late positions within the trained length")
    found = gains.groupby("label").agg(["mean", "min", "max", "count"])
    spread = (found["max"] - found["min"]).where(found["count"] > 1, np.nan)
    return pd.DataFrame({"mean": found["mean"], "spread": spread})


def _mean(rows: pd.DataFrame) -> pd.Series:
    """The mean loss of a run's buckets, weighted by their tokens."""
    weighted = (
        rows.assign(nats=rows["value"] * rows["count"]).groupby(["label", "run"])[["nats", "count"]].sum()
    )
    return weighted["nats"] / weighted["count"]
