"""Differences of all models from one baseline, with intervals that hold together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.significance import dunnett
from analysis.significance.distributions import student_t, student_tail
from analysis.significance.spread import Spread


class Differences(NamedTuple):
    """Differences of models from the baseline, [k] each; NaN at the baseline's own place, and where nothing is known.

    half_width: of intervals that, all together, hold the true differences in 95 % of studies; p: corrected for the
    number of models, below 0.05 just where the interval does not hold zero.
    """

    difference: np.ndarray
    half_width: np.ndarray
    p: np.ndarray


def against_baseline(spread: Spread, baseline: int, confidence: float = 0.95) -> Differences:
    """Return the differences of all models from the model at the place ``baseline``.

    One variance for all: Dunnett's test, exact for normal errors. Where a model stands apart: Student's t, Welch's for
    that model, with Bonferroni's correction. Not Holm's: a p-value corrected step by step can be below 0.05 beside an
    interval that holds zero.
    Sources: Dunnett 1955; Welch 1947; Dunn 1961.
    """
    others = np.delete(np.arange(len(spread.means)), baseline)
    difference = spread.means[others] - spread.means[baseline]
    error, degrees = spread.errors(others, np.full_like(others, baseline))
    known = np.flatnonzero(~np.isnan(error))
    half, p = np.full_like(error, np.nan), np.full_like(error, np.nan)
    if len(known):
        t = np.abs(difference[known] / error[known])
        correct = _dunnett if spread.pooled else _bonferroni
        critical, p[known] = correct(spread, others[known], baseline, t, degrees[known], confidence)
        half[known] = critical * error[known]
    return Differences(*(np.insert(values, baseline, np.nan) for values in (difference, half, p)))


def _dunnett(
    spread: Spread, others: np.ndarray, baseline: int, t: np.ndarray, degrees: np.ndarray, confidence: float
) -> tuple[float, list[float]]:
    counts, own = tuple(spread.counts[others].tolist()), int(spread.counts[baseline])
    critical = dunnett.critical_value(counts, own, float(degrees[0]), confidence)
    return critical, [1 - dunnett.within(one, counts, own, float(degrees[0])) for one in t]


def _bonferroni(
    spread: Spread, others: np.ndarray, baseline: int, t: np.ndarray, degrees: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    number = len(spread.means) - 1
    critical = np.array([student_t(float(d), 1 - (1 - confidence) / number) for d in degrees])
    return critical, np.minimum(1.0, number * student_tail(t, degrees))
