"""Ranks with ties: which places a model may have, given what was shown."""

from __future__ import annotations

import numpy as np

from analysis.significance.distributions import student_tail
from analysis.significance.spread import Spread


def rank_ranges(spread: Spread, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return the best and the worst rank, [k] each, that every model may have.

    best = 1 + number of models shown to be better, worst = k - number shown to be worse, by all pairs of models with
    Holm's correction. Models that are not shown to differ from any other share all ranks. With at least the confidence
    no range is wrong: each one holds its model's true place (all places of those that are truly equal).
    Source: Mogstad, Romano, Shaikh and Wilhelm 2024 (ranks); Holm 1979.
    """
    k = len(spread.means)
    one, other = np.triu_indices(k, 1)
    differ = holm(pair_probabilities(spread)) < 1 - confidence
    better = np.zeros((k, k), dtype=bool)  # [i, j]: i is better than j
    lower = spread.means[one] < spread.means[other]
    better[one, other], better[other, one] = differ & lower, differ & ~lower
    return 1 + better.sum(0), k - better.sum(1)


def pair_probabilities(spread: Spread) -> np.ndarray:
    """Return p of the t test of every pair i < j of models, uncorrected, in the order of numpy.triu_indices(k, 1)."""
    one, other = np.triu_indices(len(spread.means), 1)
    error, degrees = spread.errors(one, other)
    return student_tail((spread.means[one] - spread.means[other]) / error, degrees)


def holm(p: np.ndarray) -> np.ndarray:
    """Return p-values corrected step by step (Holm 1979): the i-th smallest of m times m - i + 1, never falling.

    NaN stays NaN and is no member of the family.
    """
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    corrected = np.full_like(p, np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected
