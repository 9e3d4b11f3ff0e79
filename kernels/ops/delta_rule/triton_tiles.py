"""Device functions of the delta rule's kernels: tiles of rows, and what their tokens decay by.

Everywhere: a chunk has C tokens of one sequence, `token` [C] are their places on the packed axis and `last` is where
the chunk or its sequence ends. Rows beyond it read as zero, gates too, so that they leave the state alone.

A gate tile g is [C, W] for W channels, or [C, 1] where a head's channels share one (SHARED). `after` is the same tile
one token later. Decays are exponentials of sums of gates, never of differences of sums: nothing overflows, and a gate
of −30 costs its neighbours no digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 64
"""Tokens a chunk: the height of the tensor cores' products, and of the triangle that is inverted."""

LEAST_GATE = tl.constexpr(-100.0)
"""exp of it is no more than a denormal; smaller gates, −∞ among them, are taken for it."""


@triton.jit
def load_rows(x, token, last, head, HEADS, column, WIDTH):
    """Tile [C, W] of x [tokens, HEADS, WIDTH]; 0 beyond the chunk and the width."""
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    return tl.load(x + place, mask=(token < last)[:, None] & (column < WIDTH)[None], other=0.0)


@triton.jit
def store_rows(x, tile, token, last, head, HEADS, column, WIDTH):
    """Write a tile [C, W] into x [tokens, HEADS, WIDTH]."""
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    mask = (token < last)[:, None] & (column < WIDTH)[None]
    tl.store(x + place, tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_column(x, token, last, head, HEADS):
    """x [tokens, HEADS] at these tokens, in fp32."""
    return tl.load(x + token * HEADS + head, mask=token < last, other=0.0).to(tl.float32)


@triton.jit
def state_tile(row, head, HEADS, key, value, K, V):
    """Places and mask of a tile [BK, BV] of states [rows, HEADS, K, V]."""
    place = ((row * HEADS + head) * K + key)[:, None] * V + value[None]
    return place, (key < K)[:, None] & (value < V)[None]


@triton.jit
def load_gates(g, token, last, head, HEADS, column, K, SHARED: tl.constexpr):
    """Gate tile [C, W], or [C, 1] of shared gates."""
    if SHARED:
        gate = load_rows(g, token, last, head, HEADS, tl.arange(0, 1), 1)
    else:
        gate = load_rows(g, token, last, head, HEADS, column, K)
    return tl.maximum(gate.to(tl.float32), LEAST_GATE)


@triton.jit
def decay_from_start(g):
    """From the chunk's first token, its gate included, to each."""
    return tl.exp(tl.cumsum(g, axis=0))


@triton.jit
def decay_to_end(after):
    """From each token, its own gate excluded, to the chunk's last."""
    return tl.exp(tl.cumsum(after, axis=0, reverse=True))


@triton.jit
def decay_between(gate, C: tl.constexpr):
    """Of gates [C] that a head's channels share: [C, C], from token j (excluded) to token i; 0 for j > i."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    return tl.where(i >= j, tl.exp(tl.cumsum(tl.where(i > j, gate[:, None], 0.0), axis=0)), 0.0)


@triton.jit
def decay_to_middle(g, after, HALF: tl.constexpr, C: tl.constexpr, W: tl.constexpr):
    """In blocks of 2·HALF tokens, the decay between a token and its block's middle, [C, W].

    For tokens i > j of two halves of a block, exp(g_{j+1} + … + g_i) is the product of what row i and row j
    have here: the sum from the middle up to i, i's gate included, and from j, its gate excluded, up to the middle.
    """
    place = tl.arange(0, C)
    inner = tl.where(((place + 1) % HALF == 0)[:, None], 0.0, after)
    right = tl.cumsum(tl.reshape(g, (C // HALF, HALF, W)), axis=1)
    left = tl.cumsum(tl.reshape(inner, (C // HALF, HALF, W)), axis=1, reverse=True)
    is_right = (place % (2 * HALF) >= HALF)[:, None]
    return tl.exp(tl.where(is_right, tl.reshape(right, (C, W)), tl.reshape(left, (C, W))))


@triton.jit
def halves_meet(i, j, HALF: tl.constexpr):
    """Whether row i lies in the right and column j in the left half of one block of 2·HALF tokens."""
    return (i // (2 * HALF) == j // (2 * HALF)) & (i % (2 * HALF) >= HALF) & (j % (2 * HALF) < HALF)
