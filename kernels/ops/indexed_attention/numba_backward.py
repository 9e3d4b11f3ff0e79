"""The gradients of attention over a selection that is known, compiled by Numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.numba_common.attention import KEYS, QUERIES_BACKWARD, attend_backward, dot_heads
from kernels.numba_common.compiled import FAST, compiled
from kernels.numba_common.numbers import F, I


class Gradients(NamedTuple):
    """q [Hkv, T, G', K] without the factor of its scale, k [Hkv, T, K] and v [Hkv, T, V] of a part; zeros at first."""

    q: NDArray
    k: NDArray
    v: NDArray


@compiled(FAST)
def backward(attended, results, grad, gradients, part, parts):
    """Add the gradients of every parts-th block from `part` on; grad [Hkv, T, G', V] is that of `Results`' o."""
    kv_heads, time, padded, _ = attended.q.shape
    group = results.lse.shape[2]
    places = np.empty(KEYS + 1, I)
    weights, slopes = np.empty((padded, KEYS), F), np.empty((padded, KEYS), F)
    along = np.empty((QUERIES_BACKWARD, group), F)
    for first in range(part * QUERIES_BACKWARD, time, parts * QUERIES_BACKWARD):
        last = min(first + QUERIES_BACKWARD, time)
        for head in range(kv_heads):
            q, k, v, lse = attended.q[head], attended.k[head], attended.v[head], results.lse[head]
            d_q, d_k, d_v = gradients.q[head], gradients.k[head], gradients.v[head]
            for t in range(first, last):
                dot_heads(grad[head, t], results.o[head, t], along[t - first])
            for tile in range(0, last, KEYS):
                for t in range(max(first, tile), last):
                    n = places_of(results.bits[t], tile, min(tile + KEYS, t + 1), places)
                    given, by_o = (q[t], k, v, grad[head, t], lse[t]), along[t - first]
                    attend_backward(*given, by_o, places, n, weights, slopes, d_q[t], d_k, d_v)


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
