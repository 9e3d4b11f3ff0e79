"""Device functions that load and store tiles of a head's tokens and of matrices, masked at their edges.

Offsets have the type of the indices. Where a tile of 64-bit places would fill the registers, callers move the
pointer to the first token or matrix, which needs 64 bits, and index from there in 32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_head_rows(x, token, end, head, HEADS, column, WIDTH):
    """x [tokens, HEADS, WIDTH] of one head, a tile [token, column] as stored; 0 from token `end` and WIDTH on."""
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    return tl.load(x + place, mask=(token < end)[:, None] & (column < WIDTH)[None], other=0.0)


@triton.jit
def store_head_rows(x, tile, token, end, head, HEADS, column, WIDTH):
    """Write a tile [token, column] to x [tokens, HEADS, WIDTH] of one head, rounded to x's type.

    Nothing from token `end` and column WIDTH on.
    """
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    mask = (token < end)[:, None] & (column < WIDTH)[None]
    tl.store(x + place, tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_head_scalars(x, token, end, head, HEADS):
    """x [tokens, HEADS] of one head at these tokens, in fp32; 0 from token `end` on."""
    return tl.load(x + token * HEADS + head, mask=token < end, other=0.0).to(tl.float32)


@triton.jit
def store_head_scalars(x, values, token, end, head, HEADS):
    """Write values [token] to x [tokens, HEADS] of one head, rounded to x's type; nothing from token `end` on."""
    tl.store(x + token * HEADS + head, values.to(x.dtype.element_ty), mask=token < end)


@triton.jit
def load_matrix(x, row, column, ROWS, COLUMNS):
    """x [ROWS, COLUMNS], a tile [row, column] as stored; 0 outside."""
    mask = (row < ROWS)[:, None] & ((column >= 0) & (column < COLUMNS))[None]
    return tl.load(x + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0)


@triton.jit
def store_matrix(x, tile, row, column, ROWS, COLUMNS):
    """Write a tile [row, column] to x [ROWS, COLUMNS], rounded to x's type; nothing outside."""
    mask = (row < ROWS)[:, None] & ((column >= 0) & (column < COLUMNS))[None]
    tl.store(x + row[:, None] * COLUMNS + column[None], tile.to(x.dtype.element_ty), mask=mask)
