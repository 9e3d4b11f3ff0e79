"""Numbers of seeds that a difference needs, and the correlation of equal seeds of two models."""

from __future__ import annotations

import math

import numpy as np

from analysis.significance import dunnett
from analysis.significance.distributions import deviation_ratio, student_t

MOST = 10_000
"""Seeds above which nothing is searched."""


def power(difference: float, deviation: float, seeds: int, models: int, confidence: float = 0.95) -> float:
    """Return the probability that a model's difference from the baseline is shown, with that many seeds of each model.

    deviation: over seeds, the same for all models; shown: by the test of `against_baseline` over so many models,
    the baseline included. The noncentral t distribution, as an expectation over the sample deviation.
    """
    if seeds < 2:
        return 0.0
    degrees = models * (seeds - 1)
    critical = dunnett.critical_value((seeds,) * (models - 1), seeds, float(degrees), confidence)
    shift = abs(difference) / deviation * math.sqrt(seeds / 2)
    values, weights = deviation_ratio(float(degrees))
    outside = 1 - dunnett.normal(critical * values - shift) + dunnett.normal(-critical * values - shift)
    return float(weights @ outside)


def seeds_needed(difference: float, deviation: float, models: int, wanted: float = 0.8) -> int | None:
    """Return the fewest seeds of each model that show a difference with the wanted `power`; None above MOST.

    difference and deviation: in the same unit, above 0.
    """
    fewest = 2 * (2.8 * deviation / difference) ** 2  # for one difference, of a known deviation, at 80 %
    low, high = 1, max(2, min(MOST, math.ceil(fewest)))
    while power(difference, deviation, high, models) < wanted:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if power(difference, deviation, middle, models) >= wanted else (middle, high)
        )
    return high


def seed_correlation(values: np.ndarray) -> float:
    """Return the correlation between models of what their common seeds gave, mean covariance over pooled variance.

    values: [models, seeds], NaN where a model has no such seed; deviations are from a model's mean over the seeds that
    all models have. NaN for fewer than two models or two such seeds. It is only told: differences are computed
    without pairing, since choosing by the data what to pair would make intervals too short. Pairing pays above
    `paying_correlation`.
    """
    common = values[:, ~np.isnan(values).any(axis=0)]
    if min(common.shape) < 2:
        return math.nan
    off = common - common.mean(axis=1, keepdims=True)
    products = off @ off.T
    k = len(values)
    if not np.trace(products) > 0:
        return math.nan
    return float((products.sum() - np.trace(products)) / (k - 1) / np.trace(products))


def paying_correlation(models: int, seeds: int) -> float:
    """Return the correlation by seed above which comparing seed by seed gives shorter 95 % intervals on average.

    Pairing takes the variance down to 1 - ρ of it and the degrees of freedom from k(n-1) to (k-1)(n-1).
    """
    free, paired = (student_t(float(k * (seeds - 1))) for k in (models, models - 1))
    return 1 - (free / paired) ** 2
