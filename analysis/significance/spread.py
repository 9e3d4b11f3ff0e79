"""Deviations over seeds: one for all models, and their own for those that are much noisier.

With two or three seeds a model's own deviation is hardly known, so that its interval is long or short by luck; pooled
over the models it is known well. Pooling is wrong where one model is noisier than the others: its intervals become too
short. Cochran's test asks for just that, whether the largest variance is too large; where it is, that model stands
apart with its own, counts in the pooled one as if it were just not too noisy, and the test is asked of the others
again. Levene's and Brown-Forsythe's tests have nothing to go on with two or three seeds (two lie at the same distance
from their median, always). What the test misses, and what that costs, is in docs/comparing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.significance.distributions import root, share_tail

LEVEL = 0.1
"""A model stands apart where Cochran's test finds its variance too large at this level, which finds only gross ones."""


@dataclass(frozen=True)
class Spread:
    """Seeds, means and variances of models [k], and the variance that they share.

    variance: pooled over all models, weighted by degrees of freedom, NaN where none has two seeds; unequal: p of
    Cochran's test (NaN for fewer than two models with two seeds); apart: [k], whether a model is too noisy to share the
    variance. Variances of one seed are NaN, and so are errors that nothing is known about.
    """

    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    variance: float
    unequal: float
    apart: np.ndarray

    @property
    def pooled(self) -> bool:
        """Return whether all models share one variance."""
        return not self.apart.any()

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the pooled variance: seeds less models."""
        return int((self.counts - 1).sum())

    @property
    def deviations(self) -> np.ndarray:
        """Return the deviation over seeds of each model [k]: its own where it stands apart, else the pooled."""
        return np.sqrt(np.where(self.apart, self.variances, self.variance))

    def errors(self, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return standard errors and degrees of freedom of the differences between the means of models one and other.

        s·√(1/n_i + 1/n_j) with the pooled s; √(s_i²/n_i + s_j²/n_j) with Welch's degrees of freedom where a model
        stands apart, its own s beside the pooled or the other's own one. NaN where they cannot be known: one seed
        each, or seeds that made no difference at all.
        """
        variances = np.where(self.apart, self.variances, self.variance)
        degrees = np.where(self.apart, self.counts - 1.0, float(self.degrees))
        a, b = (variances[at] / self.counts[at] for at in (one, other))
        error = np.sqrt(a + b)
        with np.errstate(invalid="ignore", divide="ignore"):
            welch = (a + b) ** 2 / (a**2 / degrees[one] + b**2 / degrees[other])
        found = np.where(self.apart[one] | self.apart[other], welch, float(self.degrees))
        known = error > 0
        return np.where(known, error, np.nan), np.where(known, found, np.nan)


def spread_of(samples: Sequence[np.ndarray], level: float = LEVEL) -> Spread:
    """Return the spread of samples; those stand apart that Cochran's test finds too noisy at the level, one by one.

    samples: [n_i] each, n_i ≥ 1.
    """
    counts = np.array([len(sample) for sample in samples])
    means = np.array(
        [x[0] if np.ptp(x) == 0 else np.mean(x) for x in samples]
    )  # of equal numbers: no rounding
    variances = np.array(
        [(np.var(x, ddof=1) if np.ptp(x) > 0 else 0.0) if len(x) > 1 else np.nan for x in samples]
    )
    degrees = counts - 1
    squares = np.where(degrees > 0, degrees * np.nan_to_num(variances), 0.0)
    apart, excess, (unequal, noisiest) = np.zeros(len(counts), dtype=bool), [], _cochran(degrees, squares)
    p = unequal
    while p < level:
        excess.append(_largest_ratio(degrees[~apart], degrees[noisiest], level))
        apart[noisiest] = True
        p, noisiest = _cochran(np.where(apart, 0, degrees), np.where(apart, 0.0, squares))
    total = squares[~apart].sum() * np.prod([1 + ratio for ratio in excess])
    variance = float(total / degrees.sum()) if degrees.any() else float("nan")
    return Spread(counts, means, variances, variance, unequal, apart)


def _cochran(degrees: np.ndarray, squares: np.ndarray) -> tuple[float, int]:
    """p of the largest variance, and whose it is, by the Bonferroni bound over the models that have one.

    degrees, squares: of freedom, and sums of squares; 0 where a model has none. Source: Cochran 1941, 't Lam 2010.
    """
    known, total = np.flatnonzero(degrees), squares.sum()
    if len(known) < 2 or not total > 0:
        return float("nan"), -1
    tails = [share_tail(squares[i] / total, int(degrees[i]), int(degrees.sum())) for i in known]
    return min(1.0, len(tails) * min(tails)), int(known[np.argmin(tails)])


def _largest_ratio(degrees: np.ndarray, own: int, level: float) -> float:
    """The largest sum of squares, over that of all others, that a model may have without standing apart."""
    number, total = np.count_nonzero(degrees), int(degrees.sum())
    share = root(lambda share: number * share_tail(share, int(own), total) <= level)
    return share / (1 - share)
