"""Deviations over seeds: one for all models where they look alike, else each model's own.

With two or three seeds a model's own deviation is hardly known, so that its interval is long or short by luck; pooled
over the models it is known well. Pooling is wrong where one model is noisier than the others: its intervals become too
short. Cochran's test asks for just that, whether the largest variance is too large. Levene's and Brown-Forsythe's tests
have nothing to go on with two or three seeds (two lie at the same distance from their median, always). What the test
misses, and what that costs, is in docs/comparing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.significance.distributions import share_tail

LEVEL = 0.1
"""Variances are pooled unless Cochran's test finds them unequal at this level, which finds only gross ones."""


@dataclass(frozen=True)
class Spread:
    """Seeds, means and variances of models [k], and the variance pooled over them.

    unequal: p of Cochran's test (NaN for fewer than two models with two seeds); pooled: whether differences are
    computed with the pooled variance. Variances of one seed are NaN, and so are errors that nothing is known about.
    """

    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    unequal: float
    pooled: bool

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the pooled variance: seeds less models."""
        return int((self.counts - 1).sum())

    @property
    def variance(self) -> float:
        """The variance pooled over all models, weighted by degrees of freedom."""
        known = self.counts > 1
        if not known.any():
            return float("nan")
        return float(np.average(self.variances[known], weights=self.counts[known] - 1))

    def errors(self, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return standard errors and degrees of freedom of the differences between the means of models one and other.

        s·√(1/n_i + 1/n_j) with the pooled s, or √(s_i²/n_i + s_j²/n_j) with Welch's degrees of freedom. NaN where
        they cannot be known: one seed each, or seeds that made no difference at all.
        """
        if self.pooled:
            error = np.sqrt(self.variance * (1 / self.counts[one] + 1 / self.counts[other]))
            degrees = np.full(error.shape, float(self.degrees))
        else:
            a, b = (self.variances[at] / self.counts[at] for at in (one, other))
            error = np.sqrt(a + b)
            with np.errstate(invalid="ignore", divide="ignore"):
                parts = a**2 / (self.counts[one] - 1) + b**2 / (self.counts[other] - 1)
                degrees = (a + b) ** 2 / parts
        known = error > 0
        return np.where(known, error, np.nan), np.where(known, degrees, np.nan)


def spread_of(samples: Sequence[np.ndarray], level: float = LEVEL) -> Spread:
    """Return the spread of samples, pooled unless Cochran's test rejects equal variances at the level.

    samples: [n_i] each, n_i ≥ 1.
    """
    counts = np.array([len(sample) for sample in samples])
    means = np.array(
        [x[0] if np.ptp(x) == 0 else np.mean(x) for x in samples]
    )  # of equal numbers: no rounding
    variances = np.array(
        [(np.var(x, ddof=1) if np.ptp(x) > 0 else 0.0) if len(x) > 1 else np.nan for x in samples]
    )
    unequal = _cochran(counts, variances)
    return Spread(counts, means, variances, unequal, not unequal < level)


def _cochran(counts: np.ndarray, variances: np.ndarray) -> float:
    """p of the largest variance, by the Bonferroni bound over the models that have one (Cochran 1941, 't Lam 2010)."""
    known = counts > 1
    degrees = counts[known] - 1
    squares = degrees * variances[known]
    if known.sum() < 2 or not squares.sum() > 0:
        return float("nan")
    shares, total = squares / squares.sum(), int(degrees.sum())
    tails = [share_tail(share, int(d), total) for share, d in zip(shares, degrees, strict=True)]
    return min(1.0, len(tails) * min(tails))
