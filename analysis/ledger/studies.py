"""Numbers of trained models from a study's tables, a value a run."""

from __future__ import annotations

import pandas as pd

from analysis.loading.probe_measures import SUMMARY, probe_measures, select_axis
from analysis.loading.rate_sweeps import best_rates
from analysis.loading.results import Results


def summary_rows(results: Results, measure: str) -> pd.DataFrame:
    """Return a measure's rows that sum up each head or place, without those of its buckets."""
    return select_axis(probe_measures(results, (measure,)), SUMMARY)


def at_best_rate(results: Results, measure: str, axis: str = SUMMARY) -> pd.DataFrame:
    """Return a measure's rows of the runs at their model's best learning rate: summaries, or those of an axis."""
    rows = select_axis(probe_measures(results, (measure,)), axis)
    return rows[rows["run"].isin(best_rates(results)["run"])]


def after_last_layer(rows: pd.DataFrame) -> pd.Series:
    """Return the value a run of the product over all sub-blocks: behind the last layer's channel mixer."""
    rows = rows[(rows["part"] == "channel") & (rows["layer"] == rows["depth"] - 1)]
    return rows.groupby("run")["value"].mean()


def gradient_ratio(rows: pd.DataFrame) -> pd.Series:
    """Return the gradient by the streams before the first sub-block over that at the end, a value a run."""
    first = rows[(rows["layer"] == 0) & (rows["part"] == "mixer")].groupby("run")["value"].mean()
    return first / rows[rows["layer"] == rows["depth"]].groupby("run")["value"].mean()
