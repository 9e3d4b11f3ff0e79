"""Device functions for residual streams [B, T, n, D] and their coefficients: n rows a token, in tuples.

n is a compile-time number, so that a tuple is n tiles of one layout: nothing moves between threads except in sums
over channels. A program owns its tokens and loops over their channels, which keeps such sums in one fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def token_tile(TOKENS, BT: tl.constexpr):
    """The program's tokens [BT], and which of them exist."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    return token, token < TOKENS


@triton.jit
def channel_tile(start, there, D, BD: tl.constexpr):
    """Channels [BD] from start on, and the mask [BT, BD] of those that exist."""
    channel = start + tl.arange(0, BD)
    return channel, there[:, None] & (channel < D)[None]


@triton.jit
def load_streams(x, token, channel, mask, D, N: tl.constexpr):
    """The N streams of x [M, N, D] at these tokens and channels: a tuple of tiles [BT, BD] in fp32."""
    rows = ()
    for i in tl.static_range(N):
        rows += (load_stream(x, i, token, channel, mask, D, N),)
    return rows


@triton.jit
def load_stream(x, i, token, channel, mask, D, N: tl.constexpr):
    """Stream i of x [M, N, D] at these tokens and channels, a tile [BT, BD] in fp32."""
    return tl.load(x + ((token * N + i) * D)[:, None] + channel[None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_stream(x, row, i, token, channel, mask, D, N: tl.constexpr):
    """Write stream i of x [M, N, D], rounded to x's type."""
    tl.store(x + ((token * N + i) * D)[:, None] + channel[None], row.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_coefficients(h, token, there, N: tl.constexpr):
    """The N coefficients of h [M, N] at these tokens: a tuple of vectors [BT] in fp32."""
    numbers = ()
    for i in tl.static_range(N):
        numbers += (tl.load(h + token * N + i, mask=there, other=0.0).to(tl.float32),)
    return numbers


@triton.jit
def store_coefficients(h, numbers, token, there, N: tl.constexpr):
    """Write N vectors [BT] of numbers to h [M, N] at these tokens, rounded to h's type."""
    for i in tl.static_range(N):
        tl.store(h + token * N + i, numbers[i].to(h.dtype.element_ty), mask=there)


@triton.jit
def zero_coefficients(token, N: tl.constexpr):
    """A tuple of N vectors [BT] of zeros, to be summed into."""
    numbers = ()
    for _ in tl.static_range(N):
        numbers += (tl.zeros((token.shape[0],), tl.float32),)
    return numbers


@triton.jit
def weighted_sum(weights, rows, N: tl.constexpr):
    """Σ_i weights_i·rows_i [BT, BD]."""
    total = weights[0][:, None] * rows[0]
    for i in tl.static_range(1, N):
        total += weights[i][:, None] * rows[i]
    return total


@triton.jit
def add_products(sums, rows, others, N: tl.constexpr, OTHERS: tl.constexpr):
    """N·OTHERS vectors [BT]: sums_(i·OTHERS + j) + rows_i·others_j, the products summed over the tile's channels.

    rows: N tiles, others: OTHERS tiles, [BT, BD]; sums: vectors [BT], in fp32.
    """
    added = ()
    for i in tl.static_range(N):
        for j in tl.static_range(OTHERS):
            added += (sums[i * OTHERS + j] + tl.sum(rows[i] * others[j], axis=1),)
    return added
