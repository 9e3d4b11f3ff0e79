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
    """The two bf16 numbers whose sum is an fp32 number to 16 bits."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """x·y in fp32, of x in fp32 and y as stored. PRECISION as `tl.dot` has it, or "parts": of two bf16 parts.

    A bf16 y is one part already, and two products do; of an fp32 one it takes three, without the product of low parts.
    """
    if PRECISION == "parts":
        high, low = _parts(x)
        if y.dtype == tl.bfloat16:
            result = tl.dot(high, y, tl.dot(low, y))
        else:
            y_high, y_low = _parts(y)
            result = tl.dot(high, y_high, tl.dot(high, y_low, tl.dot(low, y_high)))
    else:
        result = tl.dot(x, y.to(tl.float32), input_precision=PRECISION)
    return result


@triton.jit
def load_tokens(x, first, row, rows, head, H, column, WIDTH):
    """x [T, H, WIDTH] of a chunk and head, a tile [row, column] in fp32."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH).to(tl.float32)


@triton.jit
def load_stored(x, first, row, rows, head, H, column, WIDTH):
    """What `load_tokens` loads, in x's type."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH)


@triton.jit
def store_tokens(x, tile, first, row, rows, head, H, column, WIDTH):
    """Write what `load_tokens` would load, rounded to x's type."""
    store_head_rows(x + first * H * WIDTH, tile, row, rows, head, H, column, WIDTH)


@triton.jit
def load_scalars(x, first, row, rows, head, H):
    """x [T, H] of a chunk and head, [row] in fp32."""
    return load_head_scalars(x + first * H, row, rows, head, H)


@triton.jit
def store_scalars(x, values, first, row, rows, head, H):
    """Write what `load_scalars` would load, rounded to x's type."""
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
    sums = tl.cumsum(tl.where(row[:, None] > source[None], gates[:, None], 0.0), axis=0)
    return tl.where(row[:, None] >= source[None], tl.exp(sums), 0.0)
