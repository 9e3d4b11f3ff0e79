"""Routes and assignments of routers, joined with the columns of their runs that figures need."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.comparison import unique_seeds
from analysis.errors import NoData
from analysis.loading.blocks import DEFAULT_NOUN, nouns
from analysis.loading.probe_measures import JOINED_COLUMNS
from analysis.loading.probe_tables import advice
from analysis.loading.results import Results


def routing_rows(results: Results, name: str) -> pd.DataFrame:
    """Return rows of "routes" or "assignments" with JOINED_COLUMNS, `series` and `noun`; a run a setting and seed.

    Raises NoData if no run has such rows.
    """
    rows = results.table(name)
    if rows.empty:
        raise NoData(f"no run has probes/{name}.parquet; {advice(results)}")
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    return with_routers(rows.merge(runs[list(JOINED_COLUMNS)], on=["experiment", "run"]), results.runs)


def with_routers(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add `series`, the label (and the block where a model has several routers), and `noun`, the kind of choice."""
    several = rows.groupby("label")["block"].transform("nunique") > 1
    series = rows["label"].where(~several, rows["label"] + ", " + rows["block"])
    return rows.assign(series=series, noun=rows["block"].map(nouns(runs)).fillna(DEFAULT_NOUN))


def one_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of one router of one run: mixers before channel mixers, by block, label and seed."""
    order = rows.assign(other=rows["part"] != "mixer").sort_values(
        ["other", "block", "label", "seed"], kind="stable"
    )
    first = order.iloc[0]
    return rows[(rows["block"] == first["block"]) & (rows["run"] == first["run"])]


def mutual_information(choices: np.ndarray, kinds: np.ndarray, counts: np.ndarray | None = None) -> float:
    """Return the plug-in estimate of mutual information, I(C; K) = Σ_ck n_ck/N · ln(n_ck·N / (n_c·n_k)), in nats.

    choices, kinds: [P] integers ≥ 0; counts: [P] how often the pair occurs (None: once), repeated pairs add up.
    The plug-in estimate is never below 0, and above the truth by about (|C| − 1)(|K| − 1)/2N.
    """
    counts = np.ones(len(choices)) if counts is None else counts
    n_kinds = int(kinds.max()) + 1
    joint = np.bincount(choices * n_kinds + kinds, counts, minlength=(int(choices.max()) + 1) * n_kinds)
    joint = joint.reshape(-1, n_kinds) / counts.sum()
    free = joint.sum(1, keepdims=True) * joint.sum(0)
    there = joint > 0
    return max(0.0, float((joint[there] * np.log(joint[there] / free[there])).sum()))
