"""Selection, attention and the indexer's loss of one sequence, compiled by Numba: a query reads its own keys alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.numba_common.attention import QUERIES, attend_block
from kernels.numba_common.compiled import FAST, compiled
from kernels.numba_common.numbers import F, I, exp32, log32
from kernels.numba_common.rows import add_rows, highest_of, scatter_rows
from kernels.ops.indexed_attention.numba_select import (
    BUCKETS,
    count,
    index_scores,
    ordered,
    select,
    variance,
)

TINY = F(np.finfo(F).tiny)


class Attended(NamedTuple):
    """Scaled q [Hkv, T, G', K], k [Hkv, T, K], v [Hkv, T, V]: K and V multiples of WIDTH, G' ≥ G with zeros."""

    q: NDArray
    k: NDArray
    v: NDArray


class Indexed(NamedTuple):
    """Scaled q [T, HI, DI], k [T, DI] and [DI', T'] transposed, w [T, HI], bias [HI], tau; whether σ is the sigmoid.

    Filled up with zeros: DI to a multiple of WIDTH, of which DI' are no zeros, T' to a multiple of TILE.
    """

    q: NDArray
    k: NDArray
    k_t: NDArray
    w: NDArray
    bias: NDArray
    tau: np.float32
    sigmoid: bool


class Rule(NamedTuple):
    """`AdaptiveK` in numbers; seed and inverse say which rule it is, none of them "none"."""

    seed: bool
    inverse: bool
    base: int
    least: int
    most: int
    beta: float
    reference: float


class Results(NamedTuple):
    """o [Hkv, T, G', V], zeros at first; lse [Hkv, T, G]; bits uint8 [T, ⌈T/8⌉], zeros at first."""

    o: NDArray
    lse: NDArray
    bits: NDArray


class Learned(NamedTuple):
    """The loss's gradients q, k and w as in `Indexed`, and the sums of loss, tau and bias, fp64 [2 + HI]; zeros.

    q without the factor of its scale; k and the sums are one part's.
    """

    q: NDArray
    k: NDArray
    w: NDArray
    sums: NDArray


class Block(NamedTuple):
    """Buffers of a block's queries: what they selected and, at those n keys, all numbers that are needed again.

    places int32 [C, n], counts int64 [C], scores [C, n] and active [C, HI, n] of the indexer, weights [C, G', n] of
    attention, target [C, n] their mean over all heads; logits [n], τ times a query's scores.
    """

    places: NDArray
    counts: NDArray
    scores: NDArray
    active: NDArray
    weights: NDArray
    target: NDArray
    logits: NDArray


@compiled(FAST)
def forward(attended, indexed, rule, results, learned, learns, part, parts):
    """Run every parts-th block from `part` on: fills `Results` and `Learned`."""
    time, heads = indexed.w.shape
    most = min(rule.most, time)
    group = attended.q.shape[2]
    block = Block(
        np.empty((QUERIES, most), I),
        np.empty(QUERIES, np.int64),
        np.empty((QUERIES, most), F),
        np.empty((QUERIES, heads, most), F),
        np.empty((QUERIES, group, most), F),
        np.empty((QUERIES, most), F),
        np.empty(most, F),
    )
    padded = indexed.k_t.shape[1]
    scores, active = np.empty(padded, F), np.empty((heads, padded), F)
    order, pool = np.empty(padded, F), np.empty(padded, F)
    buckets, histogram = np.empty(padded, I), np.empty((4, BUCKETS), I)
    weight = F(1) / F(time)
    for first in range(part * QUERIES, time, parts * QUERIES):
        last = min(first + QUERIES, time)
        for t in range(first, last):
            index_scores(
                indexed.q[t], indexed.k_t, indexed.w[t], indexed.bias, indexed.sigmoid, t + 1, scores, active
            )
            wanted = min(count(variance(scores, t + 1, heads), rule), t + 1)
            ordered(scores, indexed.w[t], indexed.sigmoid, t, order)
            n = select(order, t, wanted, histogram, pool, buckets, block.places[t - first])
            block.counts[t - first] = n
            keep(block.places[t - first], n, scores, active, results.bits[t], block, t - first)
        attend(attended, results, block, first, last)
        for t in range(first, last):
            learn(indexed, learned, learns, block, t - first, t, weight)


@compiled(FAST)
def keep(places, n, scores, active, bits, block, c):
    """Gather what the indexer has at the selected places, and mark them in the query's bits."""
    for j in range(n):
        at = places[j]
        bits[at >> 3] |= np.uint8(128 >> (at & 7))
        block.scores[c, j] = scores[at]
    for h in range(active.shape[0]):
        for j in range(n):
            block.active[c, h, j] = active[h, places[j]]


@compiled(FAST)
def attend(attended, results, block, first, last):
    """Attention of the queries [first, last) to the keys that they selected, and the mean of all heads' weights."""
    kv_heads, _, group = results.lse.shape
    share, counts = F(1) / F(kv_heads * group), block.counts[: last - first]
    begin = np.empty(last - first, np.int64)
    block.target[:] = F(0)
    for head in range(kv_heads):
        q, lse, o = attended.q[head, first:last], results.lse[head, first:last], results.o[head, first:last]
        attend_block(
            q, attended.k[head], attended.v[head], block.places, counts, begin, block.weights, lse, o
        )
        for c in range(last - first):
            for g in range(group):
                add_to(block.target[c], block.weights[c, g], share, counts[c])


@compiled(FAST)
def add_to(out, x, factor, n):
    """out[:n] += factor·x[:n]."""
    for j in range(n):
        out[j] += factor * x[j]


@compiled(FAST)
def learn(indexed, learned, learns, block, c, t, weight):
    """Add query t's KL(p ‖ softmax(τ·I)) over its selected keys, times weight, and the gradients of that.

    With g = weight·(π − p) and z the logits of the indexer's heads: ∂I = τ·g, ∂w = Σ_s ∂I·σ(z), ∂z = ∂I·w·σ′(z).
    """
    n, tau = block.counts[c], indexed.tau
    p, scores, logits = block.target[c], block.scores[c], block.logits
    for j in range(n):
        logits[j] = tau * scores[j]
    highest, total, loss = highest_of(logits, n), F(0), F(0)
    for j in range(n):
        total += exp32(logits[j] - highest)
    shift = highest + F(math.log(total))
    for j in range(n):
        target = p[j] if p[j] > TINY else TINY
        loss += p[j] * (log32(target) - (logits[j] - shift))
    learned.sums[0] += weight * loss
    if not learns:
        return
    by_tau = F(0)
    for j in range(n):
        slope = weight * (exp32(logits[j] - shift) - p[j])
        by_tau += slope * scores[j]
        p[j] = slope * tau
    learned.sums[1] += by_tau
    for h in range(indexed.w.shape[1]):
        active, w = block.active[c, h], indexed.w[t, h]
        by_w, by_bias = F(0), F(0)
        for j in range(n):
            x = active[j]
            by_w += p[j] * x
            inner = x * (F(1) - x) if indexed.sigmoid else F(x > F(0))
            x = p[j] * w * inner
            by_bias += x
            active[j] = x
        learned.w[t, h] = by_w
        learned.sums[2 + h] += by_bias
    add_rows(block.active[c], indexed.k, block.places[c], 0, n, learned.q[t])
    scatter_rows(block.active[c], indexed.q[t], block.places[c], 0, n, learned.k)
