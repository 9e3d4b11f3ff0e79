"""What one query selects, compiled by Numba: threshold, ties, counts, and numbers that are none."""

import numpy as np
import pytest
import torch

from kernels import AdaptiveK
from kernels.ops.indexed_attention.numba_form import (
    BUCKETS,
    count,
    ordered,
    places_of,
    rule_numbers,
    select,
    threshold,
)
from kernels.ops.lightning_topk.scores import ranks


def buffers(n: int):
    """histogram, pool and buckets of `threshold`."""
    return np.empty((4, BUCKETS), np.int32), np.empty(n, np.float32), np.empty(n, np.int32)


ROWS = {
    "normal": np.random.default_rng(0).standard_normal(5000),
    "few values": np.random.default_rng(1).integers(0, 5, 999) / 4,
    "one value": np.full(50, 0.3),
    "one far from all": np.r_[np.random.default_rng(2).random(700), 1e30],
    "neighbours": 1 + np.arange(64) * 2.0**-23,
    "one": np.array([0.5]),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_threshold_is_the_one_of_a_sorted_row(name):
    x = ROWS[name].astype(np.float32)
    ordered = np.sort(x)[::-1]
    for wanted in sorted({1, 2, len(x) // 3, len(x) - 1, len(x)} & set(range(1, len(x) + 1))):
        edge, equal = threshold(x, len(x), wanted, *buffers(len(x)))
        assert edge == ordered[wanted - 1]
        assert equal == wanted - (x > edge).sum()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("share", [0.1, 0.7])
def test_the_best_and_of_equals_the_latest_and_the_own_key_are_selected(name, share):
    x, own = ROWS[name].astype(np.float32), len(ROWS[name])
    wanted = max(1, int(share * own))
    places = np.empty(own + 1, np.int32)
    n = select(x, own, wanted, *buffers(own), places)
    best = np.lexsort((np.arange(own), x))[::-1][: wanted - 1]
    assert places[:n].tolist() == [*sorted(best.tolist()), own]


def test_all_are_selected_where_no_more_are_wanted():
    places = np.empty(9, np.int32)
    assert select(np.zeros(4, np.float32), 4, 5, *buffers(4), places) == 5
    assert places[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_end_and_stay_within_what_was_asked_for(bad):
    x = np.random.default_rng(3).random(300).astype(np.float32)
    for spoilt in ([0], [7, 200], range(300)):
        row, places = x.copy(), np.empty(301, np.int32)
        row[list(spoilt)] = bad
        n = select(row, 300, 40, *buffers(300), places)
        assert 1 <= n <= 40
        assert places[n - 1] == 300
        assert (np.diff(places[:n]) > 0).all()


@pytest.mark.parametrize("kind", ["sigmoid", "relu"])
@pytest.mark.parametrize("size", [1.0, 2.0**-18, 2.0**-36])
def test_scores_are_ordered_and_tie_as_lightning_topk_ranks_them(kind, size):
    """Among them neighbours in fp32, and shares closer than the steps in which they are compared."""
    draw = torch.Generator().manual_seed(5)
    scores = torch.rand(1, 1, 400, generator=draw) * size
    scores[..., 200:] = torch.nextafter(scores[..., :200], torch.tensor(1.0))
    w, out = torch.tensor([[[0.5, 0.25]]]), np.empty(400, np.float32)
    ordered(scores[0, 0].numpy(), w[0, 0].numpy(), kind == "sigmoid", 400, out)
    wanted = ranks(scores.clone(), w, kind)[0, 0].argsort()
    assert np.lexsort((np.arange(400), out)).tolist() == wanted.tolist()


RULES = {
    "none": AdaptiveK("none", 7, 1, 9),
    "seed": AdaptiveK("seed", 7, 2, 30, beta=2.0),
    "seed, of a wide range": AdaptiveK("seed", 64, 16, 4096, beta=0.02),
    "seed, without variance": AdaptiveK("seed", 7, 2, 30, beta=0.0),
    "inverse": AdaptiveK("inverse", 7, 2, 30, reference=0.01),
}


@pytest.mark.parametrize("name", RULES)
def test_counts_are_those_of_the_rule(name):
    for variance in (0.0, 1e-9, 0.0004, 0.01, 0.013, 0.25, 9.0, 88.0, 90.0, 1e6):
        wanted = int(RULES[name](torch.tensor(variance)))
        assert count(np.float32(variance), rule_numbers(RULES[name])) == wanted


def test_places_are_those_of_the_bits():
    mask = np.random.default_rng(4).random(77) < 0.4
    mask[70:] = False
    bits, places = np.packbits(mask), np.empty(78, np.int32)
    for first, last in ((0, 77), (8, 40), (32, 71), (16, 16)):
        n = places_of(bits, first, last, places)
        end = -(-last // 8) * 8
        assert places[:n].tolist() == (first + np.flatnonzero(mask[first:end])).tolist()
