"""What the mesa layer's kernels share: tiles of tokens and of states, and what the gates of a chunk leave.

Sums of gates are sums, never differences of longer sums: a small gate behind a large one would be lost.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 64
"""Tokens a chunk. A longer one means fewer states to keep and more work a token."""


@triton.jit
def load_rows(x, token, end, head, H, column, WIDTH):
    """[tokens, columns] of one head of x [T, H, WIDTH] in fp32; 0 outside."""
    place = (token[:, None] * H + head) * WIDTH + column[None]
    mask = (token < end)[:, None] & (column < WIDTH)[None]
    return tl.load(x + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rows(x, value, token, end, head, H, column, WIDTH):
    """What `load_rows` would load, rounded to x's type."""
    place = (token[:, None] * H + head) * WIDTH + column[None]
    mask = (token < end)[:, None] & (column < WIDTH)[None]
    tl.store(x + place, value.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_scalars(x, token, end, head, H):
    """[tokens] of one head of x [T, H] in fp32; 0 outside."""
    return tl.load(x + token * H + head, mask=token < end, other=0.0).to(tl.float32)


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
def left_at_end(g, token, last, end, head, H):
    """[tokens]: what is left, after the chunk's last token, of what each has written."""
    later = (token + 1 < end) & (token < last)
    gates = tl.load(g + (token + 1) * H + head, mask=later, other=0.0).to(tl.float32)
    return tl.exp(tl.cumsum(gates, axis=0, reverse=True))


@triton.jit
def left_of_pairs(gates, token):
    """[t, s]: what is left after token t of what s has written; 0 for s > t."""
    later = token[:, None] > token[None]
    sums = tl.cumsum(tl.where(later, gates[:, None], 0.0), axis=0)
    return tl.where(token[:, None] >= token[None], tl.exp(sums), 0.0)
