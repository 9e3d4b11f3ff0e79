"""The statistics of a comparison: pure functions on arrays, for quantities of which less is better.

First come deviations over seeds, differences from a baseline, ranks, and the seeds that a difference needs; then test
documents, means over seeds and power laws; last the distributions behind them all.

A sample is what the seeds of one model gave, [n]; models may have different numbers of seeds, and one is enough where
others have more. What holds for all models of a family together holds with the family's confidence, 95 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

__all__ = [
    "Spread",
    "against_baseline",
    "over_documents",
    "power",
    "rank_ranges",
    "seed_correlation",
    "seeds_needed",
    "spread_of",
]


# Deviations over seeds: one for all models, and their own for those that are much noisier.
#
# With two or three seeds a model's own deviation is hardly known, so its interval is long or short by luck. Pooled over
# the models it is known well, but where one model is noisier than the others, its intervals become too short. Cochran's
# test asks just that: whether the largest variance is too large. If it is, that model stands apart with its own, counts
# in the pooled one as if it were just not too noisy, and the test is repeated for the others. Levene's and
# Brown-Forsythe's tests cannot work with two or three seeds (two lie at the same distance from their median, always).
# docs/comparing.md says what the test misses and what that costs.

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
        freedom = np.where(self.apart[one] | self.apart[other], welch, float(self.degrees))
        known = error > 0
        return np.where(known, error, np.nan), np.where(known, freedom, np.nan)


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


def _largest_ratio(degrees: np.ndarray, noisiest: int, level: float) -> float:
    """The largest sum of squares, over that of all others, that a model may have without standing apart."""
    number, total = np.count_nonzero(degrees), int(degrees.sum())
    share = root(lambda share: number * share_tail(share, int(noisiest), total) <= level)
    return share / (1 - share)


# Differences of all models from one baseline, with intervals that hold together.


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
    counts, seeds = tuple(spread.counts[others].tolist()), int(spread.counts[baseline])
    critical = critical_value(counts, seeds, float(degrees[0]), confidence)
    return critical, [1 - within(one, counts, seeds, float(degrees[0])) for one in t]


def _bonferroni(
    spread: Spread, others: np.ndarray, baseline: int, t: np.ndarray, degrees: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    number = len(spread.means) - 1
    critical = np.array([student_t(float(d), 1 - (1 - confidence) / number) for d in degrees])
    return critical, np.minimum(1.0, number * student_tail(t, degrees))


# Ranks with ties: the places that a model may have.


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


# Seeds that a difference needs, and the correlation of equal seeds of two models.

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
    critical = critical_value((seeds,) * (models - 1), seeds, float(degrees), confidence)
    shift = abs(difference) / deviation * math.sqrt(seeds / 2)
    values, weights = deviation_ratio(float(degrees))
    outside = 1 - normal(critical * values - shift) + normal(-critical * values - shift)
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


# What the choice of test documents adds to a difference between two models: a bootstrap over documents.

DRAWS = 2000
_BLOCK = 64


class DocumentDifference(NamedTuple):
    """A difference in nats a token between two models on one text; low, high: 95 % interval over documents.

    error: its standard error; documents: how many have tokens.
    """

    difference: float
    error: float
    low: float
    high: float
    documents: int


def over_documents(
    one: np.ndarray, other: np.ndarray, tokens: np.ndarray, confidence: float = 0.95, draws: int = DRAWS
) -> DocumentDifference:
    """Return the difference of losses, Σ one/Σ tokens - Σ other/Σ tokens, with its interval if documents were others.

    Documents are drawn with replacement, for both models the same (paired), and the half-width is e times the
    quantile of |D* - D|/e* over the draws: symmetric, as one tail alone is too short where lengths are skewed. The
    error of a ratio, e = √(Σ(d_j - D·t_j)²/(1 - t_j/T))/T with T = Σt_j, allows for what a long document pulls D to
    itself. Seeds are held: it is beside their interval, not in it.
    one, other: sums of -ln p by document, [J]; means over seeds where there are several. tokens: scored, [J].
    Fewer than two documents with tokens give NaN. The generator is seeded: equal input gives equal output.
    Source: Hall 1988 (symmetric bootstrap-t); MacKinnon and White 1985 (HC2, the error).
    """
    full = tokens > 0
    gap, tokens = (np.asarray(one, "float64") - other)[full], np.asarray(tokens, "float64")[full]
    number = len(tokens)
    if number < 2:
        return DocumentDifference(gap.sum() / tokens.sum() if number else np.nan, *[np.nan] * 3, number)
    difference, error = (float(x[0]) for x in _ratio(gap[None], tokens[None]))
    generator = np.random.default_rng(0)
    statistics = []
    for begin in range(0, draws, _BLOCK):
        drawn = generator.integers(number, size=(min(_BLOCK, draws - begin), number))
        again, errors = _ratio(gap[drawn], tokens[drawn])
        with np.errstate(invalid="ignore", divide="ignore"):
            statistics.append((again - difference) / errors)
    known = np.abs(np.concatenate(statistics))
    known = known[np.isfinite(known)]
    half_width = error * np.quantile(known, confidence) if len(known) else np.nan
    return DocumentDifference(difference, error, difference - half_width, difference + half_width, number)


def _ratio(gap: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ gap/Σ tokens and its standard error, by row of [draws, documents]."""
    total = tokens.sum(1, keepdims=True)
    difference = gap.sum(1, keepdims=True) / total
    off = gap - difference * tokens
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt((off**2 / (1 - tokens / total)).sum(1)) / total[:, 0]
    return difference[:, 0], error


# Means, intervals and curves over seeds; points that no other beats.


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


def pareto_front(costs: object) -> np.ndarray:
    """Return bool [points]: the rows of ``costs`` [points, costs] (lower is better) that no other row beats.

    A row beats another if it is nowhere higher and somewhere lower; equal rows stay together.
    """
    values = np.asarray(costs, dtype="float64")
    one, other = values[:, None], values[None]
    return ~((other <= one).all(axis=-1) & (other < one).any(axis=-1)).any(axis=1)


# Power laws of a loss against size: exponents with intervals, with and without an irreducible loss.

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
    fitted = np.linalg.lstsq(np.stack([ones, power], 1), target, rcond=None)[0]
    if fitted.min() < 0:  # at the border one of the two is 0
        alone = [(max(0.0, float(one @ target / (one @ one))), one) for one in (ones, power)]
        errors = [float(((scale * one - target) ** 2).sum()) for scale, one in alone]
        return (errors[0], alone[0][0]) if errors[0] < errors[1] else (errors[1], 0.0)
    residuals = fitted[0] * ones + fitted[1] * power - target
    return float(residuals @ residuals), float(fitted[0])


# Distributions: Student's t and the share of a sum of squares, by Gauss-Legendre quadrature of smooth integrands.


@lru_cache(maxsize=4096)
def student_t(degrees: float, confidence: float = 0.95) -> float:
    """Return the t with P(|T| < t) = confidence; 12.706 for one degree of freedom at 95 %."""
    return root(lambda t: float(student_tail(t, degrees)) <= 1 - confidence)


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


def quadrature(low: ArrayLike, high: ArrayLike, number: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights [..., number] of the integral from low [...] to high [...]."""
    nodes, weights = _legendre(number)
    half = (np.asarray(high, dtype="float64") - low)[..., None] / 2
    return np.asarray(low)[..., None] + half * (nodes + 1), half * weights


@lru_cache
def _legendre(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(number)


def root(above: object) -> float:
    """Return the smallest x ≥ 0 with ``above(x)``, a condition that holds from some x on."""
    low, high = 0.0, 1.0
    while not above(high):
        low, high = high, 2 * high
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


# Dunnett's distribution (1955): several models' differences from one baseline, jointly.

_GRID = np.linspace(-9.0, 9.0, 18_001)
_NORMAL = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _GRID])
_Z, _W = np.polynomial.hermite_e.hermegauss(32)
_W = _W / _W.sum()


@lru_cache(maxsize=1024)
def critical_value(counts: tuple[int, ...], baseline: int, degrees: float, confidence: float) -> float:
    """Return the c with `within` (c, …) = confidence; with one model Student's t."""
    return root(lambda c: within(c, counts, baseline, degrees) >= confidence)


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
