"""Distributions against printed tables, tests and ranks by hand."""

import math

import numpy as np
import pytest

from analysis import statistics
from analysis.statistics import (
    against_baseline,
    critical_value,
    holm,
    pair_probabilities,
    paying_correlation,
    power,
    rank_ranges,
    seed_correlation,
    seeds_needed,
    share_tail,
    spread_of,
    student_t,
    student_tail,
)


@pytest.mark.parametrize(
    ("degrees", "confidence", "expected"),
    [
        (1, 0.95, 12.7062047),
        (2, 0.95, 4.3026527),
        (3, 0.95, 3.1824463),
        (4, 0.95, 2.7764451),
        (9, 0.95, 2.2621572),
        (10, 0.95, 2.2281389),
        (99, 0.95, 1.9842170),
        (1000, 0.95, 1.9623391),
        (5, 0.99, 4.0321430),
        (1, 0.995, 127.3213365),
    ],
)
def test_student_t_matches_the_printed_tables(degrees, confidence, expected):
    assert student_t(degrees, confidence) == pytest.approx(expected, abs=1e-6)


def test_the_tails_of_student_t_far_out_and_with_broken_degrees():
    assert student_tail(1.0, 1) == pytest.approx(0.5)
    t = np.array([0.0, 0.001, 1.0, 10.0, 1000.0])
    assert student_tail(t, 2) == pytest.approx(1 - t / np.sqrt(2 + t * t), rel=1e-6)
    assert student_tail(-1.0, 2.5) == student_tail(1.0, 2.5)
    assert student_tail(2.0, 2) > student_tail(2.0, 2.5) > student_tail(2.0, 3)
    assert np.isnan(student_tail([math.nan, 1.0], [3.0, math.nan])).all()


@pytest.mark.parametrize(
    ("models", "degrees", "expected"),
    [(1, 10, 2.228), (2, 5, 3.03), (4, 10, 2.89), (9, 20, 2.95), (5, 60, 2.58)],
)
def test_dunnett_matches_the_printed_tables(models, degrees, expected):
    """Dunnett 1964, table II: two-sided 5 % with equal numbers."""
    assert critical_value((6,) * models, 6, float(degrees), 0.95) == pytest.approx(expected, abs=0.006)


def test_a_large_baseline_makes_the_differences_independent():
    alone = critical_value((2, 2, 2), 10**6, 8.0, 0.95)
    together = critical_value((2, 2, 2), 2, 8.0, 0.95)
    assert together < alone < student_t(8, 1 - 0.05 / 3)


def test_the_largest_share_of_a_sum_of_squares():
    assert share_tail(0.31, 2, 22) == pytest.approx((1 - 0.31) ** 10)  # two degrees: 1 - (1 - x)^(rest/2)
    assert share_tail(0.5, 2, 4) == pytest.approx(0.5)
    assert share_tail(0.0, 1, 3) == pytest.approx(1.0)
    assert share_tail(1.0, 3, 7) == pytest.approx(0.0)


BY_HAND = [np.array([3.0, 3.2]), np.array([2.0, 2.1, 2.3]), np.array([2.9])]


def test_deviations_are_pooled_by_their_degrees_of_freedom():
    spread = spread_of(BY_HAND)
    squares = 0.02 + sum((x - 32 / 15) ** 2 for x in (2.0, 2.1, 2.3))
    assert spread.pooled
    assert spread.degrees == 3
    assert spread.variance == pytest.approx(squares / 3)
    error, degrees = spread.errors(np.array([1, 2]), np.array([0, 0]))
    assert error == pytest.approx([math.sqrt(squares / 3 * x) for x in (1 / 3 + 1 / 2, 1 + 1 / 2)])
    assert list(degrees) == [3, 3]


def test_two_models_are_compared_by_the_two_sample_t_test():
    pair = BY_HAND[:2]
    spread = spread_of(pair)
    found = against_baseline(spread, 0)
    error, _ = spread.errors(np.array([1]), np.array([0]))
    assert found.difference[1] == pytest.approx(32 / 15 - 3.1)
    assert found.half_width[1] == pytest.approx(student_t(3) * error[0], rel=1e-5)
    assert found.p[1] == pytest.approx(student_tail(found.difference[1] / error[0], 3), rel=1e-3)
    assert np.isnan([found.difference[0], found.half_width[0], found.p[0]]).all()
    assert found.p[1] == pytest.approx(pair_probabilities(spread)[0], rel=1e-3)


def test_the_baseline_may_stand_anywhere():
    one, other = against_baseline(spread_of(BY_HAND), 0), against_baseline(spread_of(BY_HAND[::-1]), 2)
    for a, b in zip(one, other, strict=True):
        assert a[1:] == pytest.approx(b[:2][::-1])


def test_a_model_that_is_far_noisier_has_its_own_deviation():
    """Of three seeds each, a share of squares b has P(B > b) = (1 - b)^2; Bonferroni over two comparisons."""
    quiet, noisy = [np.array([3.0, 3.1, 3.2]), np.array([3.3, 3.4, 3.5])], np.array([2.0, 4.0, 6.0])
    spread = spread_of([*quiet, noisy])
    assert list(spread.apart) == [False, False, True]
    assert spread.unequal < 0.01
    share = 1 - math.sqrt(0.1 / 3)  # just not too noisy
    assert spread.variance == pytest.approx(0.04 / (1 - share) / 6)
    found = against_baseline(spread, 0)
    assert found.half_width[1] == pytest.approx(student_t(6, 0.975) * math.sqrt(spread.variance * 2 / 3))
    assert found.p[1] == pytest.approx(2 * student_tail(0.3 / math.sqrt(spread.variance * 2 / 3), 6))
    a, b = 4.0 / 3, spread.variance / 3
    degrees = (a + b) ** 2 / (a**2 / 2 + b**2 / 6)
    assert found.half_width[2] == pytest.approx(student_t(degrees, 0.975) * math.sqrt(a + b))


def test_several_noisy_models_stand_apart_one_by_one():
    """The second is seen when the first no longer hides it; of models of two seeds and of one."""
    near = [np.array([x, x + 0.1]) for x in np.arange(8.0)]
    spread = spread_of([np.array([0.0, 30.0]), *near, np.array([0.0, 900.0]), np.array([2.0])])
    assert list(np.flatnonzero(spread.apart)) == [0, 9]
    assert 0.005 < spread.variance < 0.05
    error, degrees = spread.errors(np.array([10, 0]), np.array([1, 9]))
    assert error[0] == pytest.approx(math.sqrt(spread.variance * 1.5))
    assert degrees[0] == spread.degrees == 10
    assert error[1] == pytest.approx(math.sqrt((450 + 405000) / 2))


def test_of_two_models_the_noisier_one_stands_apart():
    spread = spread_of([np.array([3.0, 3.001]), np.array([1.0, 9.0])])
    assert list(spread.apart) == [False, True]


def test_no_interval_holds_zero_beside_a_p_below_five_per_cent():
    generator = np.random.default_rng(3)
    for _ in range(25):
        models = [generator.normal(shift, 1.0, generator.integers(1, 4)) for shift in (0, 1, 2, 4)]
        found = against_baseline(spread_of(models), 0)
        known = ~np.isnan(found.p)
        shown = np.abs(found.difference) > found.half_width
        assert (shown[known] == (found.p[known] < 0.05)).all()


@pytest.mark.parametrize("samples", [[[3.0], [2.0]], [[3.0, 3.0], [2.0, 2.0]]])
def test_without_a_deviation_nothing_is_shown(samples):
    """One seed each, or seeds that changed nothing."""
    spread = spread_of([np.array(x) for x in samples])
    found = against_baseline(spread, 0)
    assert found.difference[1] == -1.0
    assert np.isnan([found.half_width[1], found.p[1]]).all()
    assert [list(rank) for rank in rank_ranges(spread)] == [[1, 1], [2, 2]]


def test_one_seed_is_compared_by_the_deviation_of_the_others():
    found = against_baseline(spread_of(BY_HAND), 0)
    assert found.half_width[2] > found.half_width[1]


def test_holm_by_hand():
    p = np.array([0.01, math.nan, 0.04, 0.03, 0.005])
    assert holm(p) == pytest.approx([0.03, math.nan, 0.06, 0.06, 0.02], nan_ok=True)
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1.0, 1.0])
    assert len(holm(np.array([]))) == 0


def test_ranks_hold_every_place_that_a_model_may_have():
    """The middle one of three can be told from neither neighbour, and those two can."""
    values = [np.array([center - 0.1, center, center + 0.1]) for center in (1.0, 1.15, 1.3)]
    best, worst = rank_ranges(spread_of(values))
    assert (list(best), list(worst)) == ([1, 1, 2], [2, 3, 3])
    values[2] += 9
    best, worst = rank_ranges(spread_of(values))
    assert (list(best), list(worst)) == ([1, 1, 3], [2, 2, 3])


@pytest.mark.slow
def test_power_is_what_a_simulation_finds():
    generator, hits = np.random.default_rng(5), 0
    for _ in range(250):
        values = generator.normal(0, 1, (3, 4))
        values[1] += 2.5
        found = against_baseline(spread_of(list(values), level=0.0), 0)
        hits += found.p[1] < 0.05
    assert power(2.5, 1.0, 4, 3) == pytest.approx(hits / 250, abs=0.07)


@pytest.mark.parametrize("difference", [0.5, 3.0, 6.0])
def test_power_of_two_models_with_two_seeds(difference):
    """Two degrees of freedom: (s/σ)² is exponential with mean 1, whose quantiles are −ln u."""
    critical = 4.3026527  # of Student's t, as above
    spread = np.sqrt(-np.log((np.arange(20_000) + 0.5) / 20_000))
    below = statistics.normal(critical * spread - difference) - statistics.normal(
        -critical * spread - difference
    )
    assert power(difference, 1.0, 2, 2) == pytest.approx(1 - below.mean(), abs=2e-3)


def test_seeds_that_a_difference_needs():
    assert power(1.0, 1.0, 16, 2) < 0.8 < power(1.0, 1.0, 17, 2)  # the textbook's 17 a group for d = 1
    assert seeds_needed(1.0, 1.0, 2) == 17
    assert seeds_needed(0.5, 0.5, 2) == 17
    assert seeds_needed(1.0, 1.0, 11) > 17
    assert seeds_needed(100.0, 1.0, 2) == 2
    assert seeds_needed(0.001, 1.0, 2) is None


def test_correlation_by_seed():
    common = np.array([0.3, -0.1, -0.2])
    assert seed_correlation(np.array([common, common + 2])) == pytest.approx(1.0)
    assert seed_correlation(np.array([common, -common])) == pytest.approx(-1.0)
    lacking = np.array([[*common, math.nan], [*(2 * common), 7.0]])  # the last seed is not common
    assert seed_correlation(lacking) == pytest.approx(2 * 2 / (1 + 4))
    assert math.isnan(seed_correlation(np.array([[1.0, math.nan], [math.nan, 2.0]])))
    assert math.isnan(seed_correlation(np.ones((2, 3))))


def test_pairing_costs_most_with_few_models_and_seeds():
    assert paying_correlation(2, 2) == pytest.approx(1 - (4.3026527 / 12.7062047) ** 2)
    assert paying_correlation(2, 2) > paying_correlation(2, 5) > paying_correlation(11, 5) > 0
