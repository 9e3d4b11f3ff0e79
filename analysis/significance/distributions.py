"""Student's t and the share of a sum of squares, by Gauss-Legendre quadrature of smooth integrands."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike


@lru_cache
def _legendre(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(number)


def quadrature(low: ArrayLike, high: ArrayLike, number: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights [..., number] of the integral from low [...] to high [...]."""
    nodes, weights = _legendre(number)
    half = (np.asarray(high, dtype="float64") - low)[..., None] / 2
    return np.asarray(low)[..., None] + half * (nodes + 1), half * weights


def student_tail(t: ArrayLike, degrees: ArrayLike) -> np.ndarray:
    """Return P(|T| > |t|) of Student's t with ν > 0 degrees of freedom, whole or not; NaN where an argument is.

    With t = √ν·cot φ it is the integral of sin^(ν-1) φ from 0 to arccot(t/√ν), over that from 0 to π/2; φ = x² takes
    the kink at 0 away. Good to 1e-9 from one degree of freedom to thousands.
    """
    t, degrees = np.broadcast_arrays(np.abs(np.asarray(t, "float64")), np.asarray(degrees, "float64"))
    x, weights = quadrature(0.0, np.sqrt(np.arctan2(np.sqrt(degrees), t)))
    part = (weights * 2 * x * np.sin(x * x) ** (degrees[..., None] - 1)).sum(-1)
    return np.minimum(part * np.vectorize(_sine_norm, otypes=["float64"])(degrees), 1.0)


@lru_cache(maxsize=4096)
def _sine_norm(degrees: float) -> float:
    """1 over the integral of sin^(ν-1) from 0 to π/2."""
    if math.isnan(degrees):
        return degrees
    return 2 / math.sqrt(math.pi) * math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))


@lru_cache(maxsize=4096)
def student_t(degrees: float, confidence: float = 0.95) -> float:
    """Return the t with P(|T| < t) = confidence; 12.706 for one degree of freedom at 95 %."""
    return root(lambda t: float(student_tail(t, degrees)) <= 1 - confidence)


def root(above: object) -> float:
    """Return the smallest x ≥ 0 with ``above(x)``, a condition that holds from some x on."""
    low, high = 0.0, 1.0
    while not above(high):
        low, high = high, 2 * high
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


def share_tail(share: float, degrees: int, total: int) -> float:
    """Return P(B > share), B the share of one sample in the sum of squares of all, if all have one variance.

    B has the beta distribution of degrees/2 and (total - degrees)/2 (Cochran 1941); with B = sin² θ the density is
    sin^(degrees-1) θ · cos^(total-degrees-1) θ. degrees: of the one sample; total: of all.
    """
    edges = np.array([0.0, math.asin(math.sqrt(min(max(share, 0.0), 1.0)))])
    x, weights = quadrature(edges, np.array([edges[1], math.pi / 2]))
    below, above = (weights * np.sin(x) ** (degrees - 1) * np.cos(x) ** (total - degrees - 1)).sum(-1)
    return float(above / (below + above))


@lru_cache(maxsize=256)
def deviation_ratio(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values of s/σ, s a sample deviation with so many degrees of freedom, and their probabilities.

    (s/σ)²·ν has the χ² distribution; expectations over s are sums over these values.
    """
    width = 9 / math.sqrt(2 * degrees)
    values, weights = quadrature(max(0.0, 1 - width), 1 + width, 32)
    log = (degrees - 1) * np.log(values) - degrees * values**2 / 2
    weights = weights * np.exp(log - log.max())
    return values, weights / weights.sum()
