"""Attention of queries to lists of keys: a block of queries forward, one query backward.

Keys go by tiles, so that the rows which a block of queries reads stay near the processor.
"""

from __future__ import annotations

import math

from kernels.numba_common.compiled import FAST, F, compiled, exp32
from kernels.numba_common.vectors import add_rows, scatter_rows, score_rows, softmax_row

KEYS = 256
"""Keys of a tile."""

QUERIES = 32
"""Queries of a block in the forward, which holds their weights."""

QUERIES_BACKWARD = 64
"""Queries of a block in the backward, which holds those of one query and one tile."""


@compiled(FAST)
def attend_block(q, k, v, places, counts, begin, weights, lse, o):
    """Softmax over each query's keys: fills weights [C, G', n] and lse [C, G], adds to o [C, G', V].

    q [C, G', K] with the scale in it, k [S, K], v [S, V]; places int32 [C, n], rising, of which counts int64 [C] are
    used; begin int64 [C] is overwritten. A query without keys adds nothing; heads beyond G are zeros and stay so.
    """
    first, last = key_range(places, counts, k.shape[0])
    begin[:] = 0
    for tile in range(first, last, KEYS):
        for c in range(counts.size):
            stop = place_after(places[c], begin[c], counts[c], tile + KEYS)
            score_rows(q[c], k, places[c], begin[c], stop, weights[c])
            begin[c] = stop
    for c in range(counts.size):
        if counts[c] > 0:
            for g in range(lse.shape[1]):
                highest, total = softmax_row(weights[c, g], counts[c])
                lse[c, g] = highest + F(math.log(total))
    begin[:] = 0
    for tile in range(first, last, KEYS):
        for c in range(counts.size):
            stop = place_after(places[c], begin[c], counts[c], tile + KEYS)
            add_rows(weights[c], v, places[c], begin[c], stop, o[c])
            begin[c] = stop


@compiled(FAST)
def key_range(places, counts, keys):
    """The first and the last key, plus one, of any query: places int32 [C, n], rising; keys and 0 if there is none."""
    first, last = keys, 0
    for c in range(counts.size):
        if counts[c] > 0:
            first, last = min(first, places[c, 0]), max(last, places[c, counts[c] - 1] + 1)
    return first, last


@compiled(FAST)
def place_after(places, first, last, end):
    """The lowest j in [first, last] with places[j] ≥ end or j = last: places int32 [n], rising."""
    while first < last:
        middle = (first + last) >> 1
        if places[middle] < end:
            first = middle + 1
        else:
            last = middle
    return first


@compiled(FAST)
def attend_backward(q, k, v, grad, lse, along, places, n, weights, slopes, d_q, d_k, d_v):
    """Add one query's gradients over n of its keys, from that of o, grad [G', V].

    The weights are computed again as exp(q·k − lse), and ∂scores = w ⊙ (∂o·v − ∂o·o); along [G] holds ∂o·o.
    q, d_q [G', K]; k, d_k [S, K]; v, d_v [S, V]; lse [G]; places [≥ n]; weights, slopes [G', ≥ n] are overwritten.
    """
    score_rows(q, k, places, 0, n, weights)
    score_rows(grad, v, places, 0, n, slopes)
    for g in range(lse.size):
        _weigh(weights[g, :n], slopes[g, :n], lse[g], along[g])
    add_rows(slopes, k, places, 0, n, d_q)
    scatter_rows(slopes, q, places, 0, n, d_k)
    scatter_rows(weights, grad, places, 0, n, d_v)


@compiled(FAST)
def _weigh(scores, by_weight, lse, along):
    for j in range(scores.size):
        weight = exp32(scores[j] - lse)
        scores[j] = weight
        by_weight[j] = weight * (by_weight[j] - along)


@compiled(FAST)
def dot_heads(x, y, out):
    """out[g] = Σ x[g]·y[g]: x, y [G', V], out [G]."""
    for g in range(out.size):
        total, a, b = F(0), x[g], y[g]
        for d in range(a.size):
            total += a[d] * b[d]
        out[g] = total
