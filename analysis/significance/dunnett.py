"""The joint distribution of several models' differences from one baseline (Dunnett 1955)."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np

from analysis.significance.distributions import deviation_ratio, root

_GRID = np.linspace(-9.0, 9.0, 18_001)
_NORMAL = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _GRID])
_Z, _W = np.polynomial.hermite_e.hermegauss(32)
_W = _W / _W.sum()


def within(critical: float, counts: tuple[int, ...], baseline: int, degrees: float) -> float:
    """Return P(|T_i| ≤ critical for all i) of the t statistics of models that do not differ from the baseline.

    T_i = (ȳ_i - ȳ_0) / (s·√(1/n_i + 1/n_0)), s with so many degrees of freedom. Given s and the baseline's own error
    z, the T_i are independent: with λ_i² = n_i/(n_i + n_0) the probability is the expectation over both of
    ∏ [Φ((λ_i z + c s)/√(1-λ_i²)) - Φ((λ_i z - c s)/√(1-λ_i²))].

    counts: seeds n_i of the models; baseline: n_0. Source: Dunnett 1955, equation 5.
    """
    values, weights = deviation_ratio(degrees)
    product = np.ones((len(values), len(_Z)))
    for count, models in Counter(counts).items():
        share = count / (count + baseline)
        shift, scale = math.sqrt(share) * _Z, math.sqrt(1 - share)
        reach = critical * values[:, None]
        product *= (normal((shift + reach) / scale) - normal((shift - reach) / scale)) ** models
    return float(weights @ product @ _W)


def normal(x: np.ndarray) -> np.ndarray:
    """Return Φ(x), good to 3e-8."""
    return np.interp(x, _GRID, _NORMAL)


@lru_cache(maxsize=1024)
def critical_value(counts: tuple[int, ...], baseline: int, degrees: float, confidence: float) -> float:
    """Return the c with `within` (c, …) = confidence; with one model Student's t."""
    return root(lambda c: within(c, counts, baseline, degrees) >= confidence)
