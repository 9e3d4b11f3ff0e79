"""Power laws of a loss against size: exponents with their intervals, with and without an irreducible loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.significance.intervals import student_t

SIZES_FOR_A_LINE, SIZES_FOR_A_FLOOR = 3, 4
_EXPONENTS = np.geomspace(1e-3, 5, 600)


class Exponent(NamedTuple):
    """An exponent α with its 95 % interval; floor: the irreducible loss E, NaN where the law has none."""

    value: float
    low: float
    high: float
    floor: float = math.nan


def fit_line(sizes: Sequence[float], losses: Sequence[float]) -> Exponent | None:
    """Return α of L = A·N^(−α): the least-squares line of log L against log N; None below three different sizes.

    The interval is ± t(n − 2)·s/√Σ(log N − mean)², exact for independent normal scatter of log L around the line. It
    covers that scatter, seeds' and bends' together; with three runs t is 12.7.
    """
    if len(set(sizes)) < SIZES_FOR_A_LINE:
        return None
    x, y = np.log(np.asarray(sizes, dtype="float64")), np.log(np.asarray(losses, dtype="float64"))
    x = x - x.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residuals = y - y.mean() - slope * x
    degrees = len(x) - 2
    half = student_t(degrees) * math.sqrt(float(residuals @ residuals) / degrees / spread)
    return Exponent(-slope, -slope - half, -slope + half)


def fit_with_floor(sizes: Sequence[float], losses: Sequence[float]) -> Exponent | None:
    """Return α and E ≥ 0 of L = E + A·N^(−α), A ≥ 0, by least relative squares; None below four different sizes.

    With three sizes the law has as many parameters as points, and any of a family of curves goes through all of them.
    The interval is the profile's: every α whose sum of squares is at most 1 + t(n − 3)²/(n − 3) times the least, up to
    the next step of the search beyond them. An end that reaches the ends of the search, 0.001 and 5, is 0 or infinite:
    the data do not bound it.
    """
    if len(set(sizes)) < SIZES_FOR_A_FLOOR:
        return None
    x, y = np.asarray(sizes, dtype="float64"), np.asarray(losses, dtype="float64")
    x = x / math.exp(float(np.log(x).mean()))
    fits = [_at_exponent(x, y, alpha) for alpha in _EXPONENTS]
    squares = np.array([square for square, _ in fits])
    best = int(squares.argmin())
    degrees = len(x) - 3
    limit = squares[best] * (1 + student_t(degrees) ** 2 / degrees)
    (inside,) = np.nonzero(squares <= limit)
    low = 0.0 if inside[0] == 0 else float(_EXPONENTS[inside[0] - 1])
    high = math.inf if inside[-1] == len(_EXPONENTS) - 1 else float(_EXPONENTS[inside[-1] + 1])
    return Exponent(float(_EXPONENTS[best]), low, high, fits[best][1])


def _at_exponent(x: np.ndarray, y: np.ndarray, alpha: float) -> tuple[float, float]:
    """The least sum of squares of (E + A·x^(−α))/y − 1 over E ≥ 0 and A ≥ 0, and its E."""
    ones, power, target = 1 / y, x**-alpha / y, np.ones_like(y)
    found = np.linalg.lstsq(np.stack([ones, power], 1), target, rcond=None)[0]
    if found.min() < 0:  # at the border one of the two is 0
        alone = [(max(0.0, float(one @ target / (one @ one))), one) for one in (ones, power)]
        errors = [float(((scale * one - target) ** 2).sum()) for scale, one in alone]
        return (errors[0], alone[0][0]) if errors[0] < errors[1] else (errors[1], 0.0)
    residuals = found[0] * ones + found[1] * power - target
    return float(residuals @ residuals), float(found[0])
