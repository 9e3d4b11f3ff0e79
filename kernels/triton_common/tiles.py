"""Device functions for tiles of whole rows, and the running maximum of a softmax over tiles.

A row is `WIDTH` neighbouring numbers of a contiguous tensor. Places outside (an unused row, a column beyond the
width) are read as 0 and never written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(x, row, used, WIDTH, BW: tl.constexpr):
    """These rows of x [·, WIDTH], whole, [rows, BW ≥ WIDTH]; 0 where a row is unused and beyond the width."""
    column = tl.arange(0, BW)
    mask = used[:, None] & (column < WIDTH)[None]
    return tl.load(x + row.to(tl.int64)[:, None] * WIDTH + column[None], mask=mask, other=0.0)


@triton.jit
def store_rows(x, row, used, values, WIDTH, BW: tl.constexpr):
    """Write values [rows, BW ≥ WIDTH], in x's dtype, to the used rows of x [·, WIDTH]."""
    column = tl.arange(0, BW)
    mask = used[:, None] & (column < WIDTH)[None]
    place = x + row.to(tl.int64)[:, None] * WIDTH + column[None]
    tl.store(place, values.to(x.dtype.element_ty), mask=mask)


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
