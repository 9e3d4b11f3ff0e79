"""The gradients of attention over a selection that is known, compiled by Numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.numba_common.compiled import FAST, compiled
from kernels.numba_common.numbers import F, I, exp32
from kernels.numba_common.rows import add_rows, scatter_rows, score_rows
from kernels.ops.indexed_attention.numba_forward import KEYS

QUERIES = 64
"""Queries of a block."""


class Gradients(NamedTuple):
    """q [Hkv, T, G', K] without the factor of its scale, k [Hkv, T, K] and v [Hkv, T, V] of a part; zeros at first."""

    q: NDArray
    k: NDArray
    v: NDArray


@compiled(FAST)
def backward(attended, results, grad, gradients, part, parts):
    """Add the gradients of every parts-th block from `part` on; grad [Hkv, T, G', V] is that of `Results`' o.

    The weights are computed again as exp(q·k − lse), and ∂scores = w ⊙ (∂o·v − ∂o·o).
    """
    kv_heads, time, padded, _ = attended.q.shape
    group = results.lse.shape[2]
    places = np.empty(KEYS + 1, I)
    weights, slopes = np.empty((padded, KEYS), F), np.empty((padded, KEYS), F)
    along = np.empty((QUERIES, group), F)
    for first in range(part * QUERIES, time, parts * QUERIES):
        last = min(first + QUERIES, time)
        for head in range(kv_heads):
            q, k, v = attended.q[head], attended.k[head], attended.v[head]
            d_q, d_k, d_v = gradients.q[head], gradients.k[head], gradients.v[head]
            for t in range(first, last):
                for g in range(group):
                    along[t - first, g] = dot(grad[head, t, g], results.o[head, t, g])
            for tile in range(0, last, KEYS):
                for t in range(max(first, tile), last):
                    n = places_of(results.bits[t], tile, min(tile + KEYS, t + 1), places)
                    score_rows(q[t], k, places, 0, n, weights)
                    score_rows(grad[head, t], v, places, 0, n, slopes)
                    for g in range(group):
                        weigh(weights[g, :n], slopes[g, :n], results.lse[head, t, g], along[t - first, g])
                    add_rows(slopes, k, places, 0, n, d_q[t])
                    scatter_rows(slopes, q[t], places, 0, n, d_k)
                    scatter_rows(weights, grad[head, t], places, 0, n, d_v)


@compiled(FAST)
def weigh(scores, by_weight, lse, along):
    """Turn a head's scores [n] into weights, and the weights' gradients into those of the scores; along = ∂o·o."""
    for j in range(scores.size):
        weight = exp32(scores[j] - lse)
        scores[j] = weight
        by_weight[j] = weight * (by_weight[j] - along)


@compiled(FAST)
def dot(x, y):
    """Σ x·y of two vectors [n]."""
    total = F(0)
    for d in range(x.size):
        total += x[d] * y[d]
    return total


@compiled(FAST)
def places_of(bits, first, last, places):
    """Write the places in [first, last) of the ones in bits, uint8 [n], a byte's highest first; return their number.

    first is a multiple of 8, and no bit from last on is one. places has room for one more: a place is written before it
    is known whether it counts, as no processor foresees it.
    """
    found = 0
    for at in range(first >> 3, (last + 7) >> 3):
        byte = I(bits[at])
        for bit in range(8):
            places[found] = 8 * at + bit
            found += (byte >> (7 - bit)) & 1
    return found
