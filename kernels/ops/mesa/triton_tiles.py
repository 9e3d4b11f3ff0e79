"""Device functions of the mesa layer's kernels: tiles of a chunk's tokens and of states, and decays between tokens.

A chunk's tokens begin at `first` on the packed axis, `row` are numbers within the chunk, and rows from `rows` on, not
the chunk's own, read as zero. Only the address of the first token needs 64 bits: those of a whole tile would fill the
registers.

Sums of gates are sums, never differences of longer sums: a small gate after a large one would be lost.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_head_scalars,
)


@triton.jit
def _parts(x):
    """The two bf16 numbers whose sum is a number to 16 bits: the upper half of its fp32 form, and the rest rounded.

    A rounded upper half would be converted twice, number by number: half as many instructions again.
    """
    x = x.to(tl.float32)
    high = (x.to(tl.int32, bitcast=True) & -(2**16)).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def product(x, y, total, PRECISION: tl.constexpr):
    """total + x·y [M, N] in fp32, of x [M, K] in fp32 and y [K, N] as stored.

    PRECISION as `tl.dot` has it, or "parts": of two bf16 parts of each. A bf16 number is one part already, so that two
    products do; of two fp32 ones it takes three, without that of low parts.
    """
    if PRECISION != "parts":
        total = tl.dot(x, y.to(tl.float32), total, input_precision=PRECISION)
    elif y.dtype == tl.bfloat16:
        high, low = _parts(x)
        total = tl.dot(high, y, tl.dot(low, y, total))
    else:
        x_high, x_low = _parts(x)
        y_high, y_low = _parts(y)
        total = tl.dot(x_high, y_high, tl.dot(x_high, y_low, tl.dot(x_low, y_high, total)))
    return total


@triton.jit
def load_tokens(x, first, row, rows, head, H, column, WIDTH):
    """x [T, H, WIDTH] of a chunk and head, a tile [row, column] in fp32."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH).to(tl.float32)


@triton.jit
def load_stored(x, first, row, rows, head, H, column, WIDTH):
    """x [T, H, WIDTH] of a chunk and head, a tile [row, column] in x's type."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH)


@triton.jit
def store_tokens(x, tile, first, row, rows, head, H, column, WIDTH):
    """Write a tile [row, column] to x [T, H, WIDTH], where `load_tokens` would load it, rounded to x's type."""
    store_head_rows(x + first * H * WIDTH, tile, row, rows, head, H, column, WIDTH)


@triton.jit
def load_scalars(x, first, row, rows, head, H):
    """x [T, H] of a chunk and head, [row] in fp32."""
    return load_head_scalars(x + first * H, row, rows, head, H)


@triton.jit
def store_scalars(x, values, first, row, rows, head, H):
    """Write values [row] to x [T, H], where `load_scalars` would load them, rounded to x's type."""
    store_head_scalars(x + first * H, values, row, rows, head, H)


@triton.jit
def load_state(state, row, column, ROWS, COLUMNS):
    """A tile [row, column] of one state [ROWS, COLUMNS] in fp32; 0 outside."""
    return load_matrix(state, row, column, ROWS, COLUMNS).to(tl.float32)


@triton.jit
def load_symmetric(state, row, column, WIDTH):
    """A tile [row, column] of the symmetric part (S + Sᵀ)/2 of one state [WIDTH, WIDTH] in fp32; 0 outside."""
    mask = (row < WIDTH)[:, None] & (column < WIDTH)[None]
    own = tl.load(state + row[:, None] * WIDTH + column[None], mask=mask, other=0.0)
    mirrored = tl.load(state + column[None] * WIDTH + row[:, None], mask=mask, other=0.0)
    return 0.5 * (own.to(tl.float32) + mirrored.to(tl.float32))


@triton.jit
def decay_to_end(g, first, row, rows, head, H, C: tl.constexpr):
    """exp(Σ_{r>s} g_r) [C]: the decay from each token s to the chunk's last."""
    later = (row + 1 < rows) & (row + 1 < C)
    gates = tl.load(g + first * H + head + (row + 1) * H, mask=later, other=0.0).to(tl.float32)
    return tl.exp(tl.cumsum(gates, axis=0, reverse=True))


@triton.jit
def decay_of_pairs(gates, row, source):
    """exp(Σ_{s<r≤t} g_r) [t, s]: the decay from s to t; 0 for s > t.

    gates of the tokens `row`, which are the t; `source` are the s.
    """
    # exp as a power of two: a scaled gate here or a scaled sum there
    sums = tl.cumsum(
        tl.where(row[:, None] > source[None], (gates * 1.4426950408889634)[:, None], 0.0), axis=0
    )
    return tl.where(row[:, None] >= source[None], tl.exp2(sums), 0.0)
