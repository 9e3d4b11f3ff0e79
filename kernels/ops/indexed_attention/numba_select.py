"""The indexer's scores of one query and the keys that it selects, compiled by Numba.

The same order as `lightning_topk`'s: shares I_ts/Σ_j w_tj in fp32 and steps of 2^−40 (a sigmoid's) or scores without
their last bit (a ReLU's), of equal ones the later key, NaN above all numbers, and the query's own key always.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.numba_common.compiled import EXACT, FAST, compiled
from kernels.numba_common.numbers import F, I, exp32, from_bits, to_bits
from kernels.numba_common.rows import highest_of, lowest_of
from kernels.numba_common.vectors import LANES, load, multiply_add, spread, store

TILE = 128
"""Keys at a time: whole vectors on every processor, so that each key's score is the same sequence of operations."""

BUCKETS = 1024
"""Into which the scores of a query are sorted, to find the one from which on they are selected."""

COARSE = F(2.0**-17)
"""Numbers from here to its double are 2^−40 apart in fp32, smaller ones less."""

UNKNOWN = F(2)
"""The share of a score that is NaN: above all others."""

LARGEST = F(np.finfo(F).max / 2)
"""Scores of a ReLU beyond it are equal: the range of all of them is a number then."""


@compiled(EXACT)
def index_scores(q, k, w, bias, sigmoid, seen, scores, active):
    """scores[s] = Σ_h w[h]·active[h, s], active[h, s] = σ(q[h]·k[:, s] + bias[h]), for s < seen in whole tiles.

    q [HI, ≥ DI], k [DI, T], w, bias [HI], scores [T], active [HI, T]; T a multiple of TILE.
    """
    heads = bias.size
    for first in range(0, seen, TILE):
        h = 0
        while h + 4 <= heads:
            _logits_of_four(q[h : h + 4], k, bias[h : h + 4], first, active[h : h + 4])
            h += 4
        while h < heads:
            _logits_of_one(q[h], k, bias[h], first, active[h])
            h += 1
        here = slice(first, first + TILE)
        total = scores[here]
        total[:] = F(0)
        for h in range(heads):
            _activate(active[h, here], w[h], sigmoid, total)


@compiled(EXACT, inline=True)
def _logits_of_four(q, k, bias, first, out):
    """Four heads' logits of a tile of keys: sums in registers, two vectors of keys for each head."""
    q0, q1, q2, q3 = q[0], q[1], q[2], q[3]
    out0, out1, out2, out3 = out[0], out[1], out[2], out[3]
    start0, start1, start2, start3 = spread(bias[0]), spread(bias[1]), spread(bias[2]), spread(bias[3])
    at = first
    while at < first + TILE:
        more = at + LANES
        a0, a1, a2, a3 = start0, start1, start2, start3
        b0, b1, b2, b3 = start0, start1, start2, start3
        for d in range(k.shape[0]):
            x, y = load(k[d], at), load(k[d], more)
            factor = spread(q0[d])
            a0, b0 = multiply_add(factor, x, a0), multiply_add(factor, y, b0)
            factor = spread(q1[d])
            a1, b1 = multiply_add(factor, x, a1), multiply_add(factor, y, b1)
            factor = spread(q2[d])
            a2, b2 = multiply_add(factor, x, a2), multiply_add(factor, y, b2)
            factor = spread(q3[d])
            a3, b3 = multiply_add(factor, x, a3), multiply_add(factor, y, b3)
        store(out0, at, a0)
        store(out1, at, a1)
        store(out2, at, a2)
        store(out3, at, a3)
        store(out0, more, b0)
        store(out1, more, b1)
        store(out2, more, b2)
        store(out3, more, b3)
        at += 2 * LANES


@compiled(EXACT, inline=True)
def _logits_of_one(q, k, bias, first, out):
    """One head's logits of a tile of keys."""
    at = first
    while at < first + TILE:
        a = spread(bias)
        for d in range(k.shape[0]):
            a = multiply_add(spread(q[d]), load(k[d], at), a)
        store(out, at, a)
        at += LANES


@compiled(EXACT)
def _activate(z, weight, sigmoid, total):
    """Replace a tile's logits by σ of them, and add weight·σ to the total."""
    if sigmoid:
        for s in range(TILE):
            z[s] = F(1) / (F(1) + exp32(-z[s]))
    else:
        for s in range(TILE):
            z[s] = z[s] if z[s] > F(0) else z[s] * F(0)  # NaN stays
    for s in range(TILE):
        total[s] += weight * z[s]


@compiled(FAST)
def variance(scores, seen, heads):
    """The population variance of scores[:seen]/heads."""
    inverse = F(1) / F(heads)
    mean = F(0)
    for s in range(seen):
        mean += scores[s] * inverse
    mean /= F(seen)
    total = F(0)
    for s in range(seen):
        apart = scores[s] * inverse - mean
        total += apart * apart
    return total / F(seen)


@compiled(EXACT)
def count(v, rule):
    """The number of keys for a variance, as `AdaptiveK` gives it; rule: a `Rule`."""
    k = F(rule.base)
    if rule.seed:
        k *= F(1) + F(rule.beta) * F(v + math.log1p(math.exp(-v)))
    elif rule.inverse:
        k *= F(math.sqrt(F(rule.reference) / v)) if v > F(0) else F(math.inf)
    k = k if k < F(rule.most) else F(rule.most)  # NaN too
    return int(np.rint(k if k > F(rule.least) else F(rule.least)))


@compiled(EXACT)
def ordered(scores, w, sigmoid, seen, out):
    """out[s], fp32, s < seen: numbers that are ordered and equal as `lightning_topk` orders and equals scores."""
    if sigmoid:
        total = F(0)
        for h in range(w.size):
            total += w[h]
        total = total if total > F(np.finfo(F).tiny) else F(np.finfo(F).tiny)
        for s in range(seen):
            share = scores[s] / total
            share = share if share >= COARSE else (share + COARSE) - COARSE
            out[s] = share if share == share else UNKNOWN
    else:
        for s in range(seen):
            score = from_bits(to_bits(scores[s]) & I(-2))
            score = score if score <= LARGEST else LARGEST  # NaN too, whose bits are the highest
            out[s] = score if score >= -LARGEST else -LARGEST


@compiled(EXACT)
def threshold(x, n, wanted, histogram, pool, buckets):
    """The wanted-th highest of x[:n], 1 ≤ wanted ≤ n, and how many of those equal to it are among the wanted.

    Buckets between lowest and highest, then the same with the numbers of the bucket that holds it, until all are
    equal. histogram int32 [4, BUCKETS], pool fp32 [n] and buckets int32 [n] are overwritten.
    """
    rest, size = x, n
    while True:
        lowest, highest = lowest_of(rest, size), highest_of(rest, size)
        if not highest > lowest:
            return lowest, wanted
        fill_buckets(rest[:size], lowest, F(BUCKETS - 1) / (highest - lowest), buckets)
        count_buckets(buckets, size, histogram)
        here = BUCKETS - 1
        while here > 0 and histogram[0, here] < wanted:
            wanted -= histogram[0, here]
            here -= 1
        kept = 0
        for i in range(size):
            if buckets[i] == here:
                pool[kept] = rest[i]
                kept += 1
        if kept == size:  # a range beyond fp32's
            return lowest, wanted
        rest, size = pool, kept


@compiled(EXACT)
def fill_buckets(x, lowest, scale, buckets):
    """The place of every x [n] among BUCKETS of width 1/scale from `lowest` on."""
    for i in range(x.size):
        place = (x[i] - lowest) * scale
        place = place if place > F(0) else F(0)
        buckets[i] = I(place if place < F(BUCKETS - 1) else F(BUCKETS - 1))


@compiled(EXACT)
def count_buckets(buckets, n, histogram):
    """histogram[0, b]: how many of buckets[:n] are b. In four counts: neighbours alike do not wait for each other."""
    histogram[:] = 0
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        histogram[0, buckets[i]] += 1
        histogram[1, buckets[i + 1]] += 1
        histogram[2, buckets[i + 2]] += 1
        histogram[3, buckets[i + 3]] += 1
    for i in range(whole, n):
        histogram[0, buckets[i]] += 1
    for b in range(BUCKETS):
        histogram[0, b] += histogram[1, b] + histogram[2, b] + histogram[3, b]


@compiled(EXACT)
def select(order, own, wanted, histogram, pool, buckets, places):
    """Write the places of the wanted − 1 highest of order[:own], and own, in rising order; return their number.

    Of equal ones the later are taken. places int32 [≥ wanted].
    """
    if own < wanted:
        for i in range(own + 1):
            places[i] = i
        return own + 1
    if wanted == 1:
        places[0] = own
        return 1
    edge, equal = threshold(order, own, wanted - 1, histogram, pool, buckets)
    skipped = -equal
    for i in range(own):
        skipped += order[i] == edge
    found = 0
    for i in range(own):
        same = I(order[i] == edge)
        places[found] = i  # written before it is known whether it counts, as no processor foresees it
        taken = I(order[i] > edge) | (same & I(skipped <= 0))
        found += taken & I(found < wanted - 1)
        skipped -= same
    places[found] = own
    return found + 1
