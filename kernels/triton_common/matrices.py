"""Device functions for many small square matrices [M, n, n] in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matrix_tile(MATRICES, SIZE: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """Return the places of the program's BM matrices, in tiles N ≥ SIZE wide.

    First entries [BM, 1, 1], rows [1, N, 1], columns [1, 1, N], and the mask of the entries that exist.
    """
    matrix = (tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM))[:, None, None]
    row, column = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None]
    mask = (matrix < MATRICES) & (row < SIZE) & (column < SIZE)
    return matrix * SIZE * SIZE, row, column, mask
