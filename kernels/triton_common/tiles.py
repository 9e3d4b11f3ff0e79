"""Device functions that load and store tiles of rows, and the running maximum of a softmax over tiles.

A row is `WIDTH` neighbouring numbers of a contiguous tensor. What lies outside (an unused row, a column behind the
width) is read as 0 and never written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_tile(x, row, used, column, WIDTH):
    """These columns of these rows of x [·, WIDTH], as stored, [rows, columns]; 0 where a row is unused."""
    mask = used[:, None] & (column < WIDTH)[None]
    return tl.load(x + row[:, None] * WIDTH + column[None], mask=mask, other=0.0)


@triton.jit
def store_tile(x, row, used, column, values, WIDTH):
    """Write values [rows, columns], in x's dtype, to these columns of the used rows of x [·, WIDTH]."""
    mask = used[:, None] & (column < WIDTH)[None]
    tl.store(x + row[:, None] * WIDTH + column[None], values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_rows(x, row, used, WIDTH, BW: tl.constexpr):
    """These rows of x [·, WIDTH], whole, [rows, BW ≥ WIDTH]; 0 where a row is unused and behind the width."""
    return load_tile(x, row.to(tl.int64), used, tl.arange(0, BW), WIDTH)


@triton.jit
def store_rows(x, row, used, values, WIDTH, BW: tl.constexpr):
    """Write values [rows, BW ≥ WIDTH], in x's dtype, to the used rows of x [·, WIDTH]."""
    store_tile(x, row.to(tl.int64), used, tl.arange(0, BW), values, WIDTH)


@triton.jit
def load_tokens(x, token, end, head, HEADS, column, WIDTH):
    """One head's columns of these tokens of x [T, HEADS, WIDTH], as stored; 0 from token `end` on."""
    return load_tile(x, token * HEADS + head, token < end, column, WIDTH)


@triton.jit
def store_tokens(x, values, token, end, head, HEADS, column, WIDTH):
    """Write values [tokens, columns] to one head of x [T, HEADS, WIDTH], before token `end`."""
    store_tile(x, token * HEADS + head, token < end, column, values, WIDTH)


@triton.jit
def load_scalars(x, token, end, head, HEADS):
    """One head's number of each of these tokens of x [T, HEADS], fp32 [tokens]; 0 from token `end` on."""
    return tl.load(x + token * HEADS + head, mask=token < end, other=0.0).to(tl.float32)


@triton.jit
def running_max(largest, scores):
    """Largest score of each row so far, a finite centre to subtract, and the factor that rescales earlier sums.

        m' = max(m, max_s a_s),   c = m' or 0 where nothing is visible yet,   factor = e^(m − c)

    scores [rows, columns], −∞ where hidden; largest [rows], −∞ at first.
    """
    higher = tl.maximum(largest, tl.max(scores, axis=1))
    # −∞ − (−∞) would be NaN.
    centre = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, centre, tl.exp(largest - centre)
