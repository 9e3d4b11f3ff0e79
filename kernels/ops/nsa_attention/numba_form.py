"""Attention of every query to ranges of keys, compiled by Numba: the three branches alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.numba_common.attention import (
    KEYS,
    QUERIES,
    QUERIES_BACKWARD,
    attend_backward,
    attend_block,
    dot_heads,
)
from kernels.numba_common.compiled import FAST, F, I, compiled


class Ranged(NamedTuple):
    """Scaled q [Hkv, T, G', K], k [Hkv, S, K], v [Hkv, S, V], ranges int32 [Hkv or 1, T, n, 2] of keys, rising.

    K and V are multiples of WIDTH, heads beyond G are zeros.
    """

    q: NDArray
    k: NDArray
    v: NDArray
    ranges: NDArray


@compiled(FAST)
def forward(given, most, o, lse, part, parts):
    """Add attention to o [Hkv, T, G', V] and fill lse [Hkv, T, G], for every parts-th block of queries from `part` on.

    most: the most keys that a query has.
    """
    kv_heads, time, padded, _ = given.q.shape
    places, counts = np.empty((QUERIES, most), I), np.empty(QUERIES, np.int64)
    weights, begin = np.empty((QUERIES, padded, most), F), np.empty(QUERIES, np.int64)
    for first in range(part * QUERIES, time, parts * QUERIES):
        last = min(first + QUERIES, time)
        size = last - first
        for head in range(kv_heads):
            ranges = given.ranges[min(head, given.ranges.shape[0] - 1)]
            for t in range(first, last):
                counts[t - first] = places_in(ranges[t], 0, given.k.shape[1], places[t - first])
            q, k, v = given.q[head, first:last], given.k[head], given.v[head]
            results = lse[head, first:last], o[head, first:last]
            attend_block(q, k, v, places, counts[:size], begin, weights, *results)


@compiled(FAST)
def backward(given, o, lse, grad, d_q, d_k, d_v, part, parts):
    """Add to d_q [Hkv, T, G', K] (without the scale), d_k [Hkv, S, K] and d_v [Hkv, S, V]; grad is that of o."""
    kv_heads, time, padded, _ = given.q.shape
    places = np.empty(KEYS, I)
    weights, slopes = np.empty((padded, KEYS), F), np.empty((padded, KEYS), F)
    along = np.empty((QUERIES_BACKWARD, lse.shape[2]), F)
    for first in range(part * QUERIES_BACKWARD, time, parts * QUERIES_BACKWARD):
        last = min(first + QUERIES_BACKWARD, time)
        for head in range(kv_heads):
            ranges = given.ranges[min(head, given.ranges.shape[0] - 1)]
            for t in range(first, last):
                dot_heads(grad[head, t], o[head, t], along[t - first])
            begin, end = outermost(ranges[first:last], given.k.shape[1])
            for tile in range(begin, end, KEYS):
                for t in range(first, last):
                    n = places_in(ranges[t], tile, tile + KEYS, places)
                    q, slopes_of = given.q[head, t], (along[t - first], places, n, weights, slopes)
                    read = (given.k[head], given.v[head], grad[head, t], lse[head, t])
                    attend_backward(q, *read, *slopes_of, d_q[head, t], d_k[head], d_v[head])


@compiled(FAST)
def places_in(ranges, first, last, places):
    """Write the keys in [first, last) that the ranges [n, 2] hold, and return their number."""
    count = 0
    for i in range(ranges.shape[0]):
        start, stop = max(first, ranges[i, 0]), min(last, ranges[i, 1])
        for j in range(stop - start):
            places[count + j] = start + j
        count += max(0, stop - start)
    return count


@compiled(FAST)
def outermost(ranges, keys):
    """The first and the last key, plus one, of ranges [C, n, 2]; keys and 0 if all are empty."""
    first, last = keys, 0
    for c in range(ranges.shape[0]):
        for i in range(ranges.shape[1]):
            if ranges[c, i, 0] < ranges[c, i, 1]:
                first, last = min(first, ranges[c, i, 0]), max(last, ranges[c, i, 1])
    return first, last
