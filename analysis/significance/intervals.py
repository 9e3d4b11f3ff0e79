"""Means and confidence intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.significance.distributions import student_t


class Estimate(NamedTuple):
    """A mean over seeds; ``half_width`` is NaN where there is no interval (fewer than two seeds)."""

    mean: float
    half_width: float
    n: int


def estimate(values: Iterable[float], confidence: float = 0.95) -> Estimate:
    """Return mean and half width of the two-sided Student-t interval, t·s/√n, s the sample deviation (n-1).

    Missing values (None, NaN) are left out; no value at all gives a NaN mean and n = 0.
    """
    known = [float(value) for value in values if value is not None and value == value]
    n = len(known)
    if n == 0:
        return Estimate(math.nan, math.nan, 0)
    mean = math.fsum(known) / n
    if n == 1:
        return Estimate(mean, math.nan, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
    return Estimate(mean, student_t(n - 1, confidence) * deviation / math.sqrt(n), n)


def pareto_front(costs: object) -> np.ndarray:
    """Return bool [points]: the rows of ``costs`` [points, costs] (lower is better) that no other row beats.

    A row beats another if it is nowhere higher and somewhere lower; equal rows stay together.
    """
    values = np.asarray(costs, dtype="float64")
    one, other = values[:, None], values[None]
    return ~((other <= one).all(axis=-1) & (other < one).any(axis=-1)).any(axis=1)


def over_seeds(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return mean, min and max over runs of each run's mean value, by `by` (the index), where every run has one."""
    runs = rows.groupby([by, "run"])["value"].mean().reset_index(by)
    grouped = runs.groupby(by)["value"].agg(["mean", "min", "max", "count"])
    return grouped[grouped["count"] == rows["run"].nunique()].drop(columns="count")


def curves_over_seeds(rows: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Return mean, min and max of ``value`` over seeds by ``by`` (the index), in the range that every seed covers.

    Seeds are interpolated linearly at each other's points, so that curves against time can be averaged; where all
    seeds have the same points nothing is.
    """
    curves = [seed.groupby(by)[value].mean() for _, seed in rows.groupby("seed", dropna=False)]
    if not curves:
        return pd.DataFrame(columns=["mean", "min", "max"], dtype="float64")
    low, high = max(curve.index.min() for curve in curves), min(curve.index.max() for curve in curves)
    points = np.unique(np.concatenate([curve.index for curve in curves]).astype("float64"))
    points = points[(points >= low) & (points <= high)]
    values = np.stack([np.interp(points, curve.index.astype("float64"), curve) for curve in curves])
    return pd.DataFrame(
        {"mean": values.mean(axis=0), "min": values.min(axis=0), "max": values.max(axis=0)}, index=points
    )


def single_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean value by run, layer and head; heads of one number in two runs are not the same head."""
    return rows.groupby(["run", "layer", "head"], dropna=False)["value"].mean().reset_index()
