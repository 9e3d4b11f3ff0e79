"""What the mesa layer's kernels share: tiles of tokens and of states, and what the gates of a chunk leave.

Sums of gates are sums, never differences of longer sums: a small gate behind a large one would be lost.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(x, first, row, rows, head, H, column, WIDTH):
    """[rows, columns] of one head of x [T, H, WIDTH] in fp32, from token `first`; 0 beyond `rows` and WIDTH.

    Only the address of the first token needs 64 bits: those of a whole tile would fill the registers.
    """
    place = row[:, None] * (H * WIDTH) + column[None]
    mask = (row < rows)[:, None] & (column < WIDTH)[None]
    return tl.load(x + (first * H + head) * WIDTH + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, value, first, row, rows, head, H, column, WIDTH):
    """What `load_rows` would load, rounded to x's type."""
    place = row[:, None] * (H * WIDTH) + column[None]
    mask = (row < rows)[:, None] & (column < WIDTH)[None]
    tl.store(x + (first * H + head) * WIDTH + place, value.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_scalars(x, first, row, rows, head, H):
    """[rows] of one head of x [T, H] in fp32, from token `first`; 0 beyond `rows`."""
    return tl.load(x + first * H + head + row * H, mask=row < rows, other=0.0).to(tl.float32)


@triton.jit
def store_scalars(x, value, first, row, rows, head, H):
    """What `load_scalars` would load, rounded to x's type."""
    tl.store(x + first * H + head + row * H, value.to(x.dtype.element_ty), mask=row < rows)


@triton.jit
def load_tile(state, row, column, ROWS, COLUMNS):
    """[rows, columns] of a matrix [ROWS, COLUMNS] in fp32; 0 outside."""
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
    return tl.load(state + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_symmetric(state, row, column, WIDTH):
    """[rows, columns] of the symmetric part of a matrix [WIDTH, WIDTH] in fp32."""
    mask = (row < WIDTH)[:, None] & (column < WIDTH)[None]
    own = tl.load(state + row[:, None] * WIDTH + column[None], mask=mask, other=0.0)
    mirrored = tl.load(state + column[None] * WIDTH + row[:, None], mask=mask, other=0.0)
    return 0.5 * (own.to(tl.float32) + mirrored.to(tl.float32))


@triton.jit
def store_tile(state, value, row, column, ROWS, COLUMNS):
    """What `load_tile` would load."""
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
    tl.store(state + row[:, None] * COLUMNS + column[None], value.to(state.dtype.element_ty), mask=mask)


@triton.jit
def left_at_end(g, first, row, rows, head, H, C: tl.constexpr):
    """[C]: what is left, after the chunk's last token, of what each has written."""
    later = (row + 1 < rows) & (row + 1 < C)
    gates = tl.load(g + first * H + head + (row + 1) * H, mask=later, other=0.0).to(tl.float32)
    return tl.exp(tl.cumsum(gates, axis=0, reverse=True))


@triton.jit
def left_of_pairs(gates, row, source):
    """[t, s]: what is left after token t of `row`, by the gates of these, of what s has written; 0 for s > t."""
    sums = tl.cumsum(tl.where(row[:, None] > source[None], gates[:, None], 0.0), axis=0)
    return tl.where(row[:, None] >= source[None], tl.exp(sums), 0.0)
