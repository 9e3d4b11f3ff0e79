"""Device functions and small kernels that several operations use."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def chunk_bounds(table, cu, row, SIZE: tl.constexpr):
    """Return for a row of a chunk table its sequence (−1: idle), that one's first token and end, the chunk's first.

    Four int64 scalars. table int32 [rows, 2], as `chunk_table` makes it for SIZE tokens; cu [N+1], bounds of sequences.
    """
    sequence = tl.load(table + row * 2).to(tl.int64)
    busy = tl.maximum(sequence, 0)
    begin = tl.load(cu + busy).to(tl.int64)
    end = tl.load(cu + busy + 1).to(tl.int64)
    return sequence, begin, end, begin + tl.load(table + row * 2 + 1).to(tl.int64) * SIZE


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(−x)) of x [...] in fp32, elementwise."""
    return 1 / (1 + tl.exp(-x))


def padded(width: int) -> int:
    """Return the columns of a tile for rows of this width: a power of two, at least the 16 of a matrix product."""
    return max(16, triton.next_power_of_2(width))


def spans(tokens: int, most: int, least: int) -> tuple[int, int]:
    """Return the tokens of a span, a multiple of `least`, and the number of spans, at most `most`."""
    span = triton.cdiv(max(1, tokens), most * least) * least
    return span, triton.cdiv(tokens, span)


@triton.jit
def _sum_rows(parts, total, ROWS, COLUMNS, BR: tl.constexpr, BC: tl.constexpr):
    """total [COLUMNS] = Σ over rows of parts [ROWS, COLUMNS], in one fixed order."""
    column = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    accumulated = tl.zeros((BC,), tl.float32)
    for start in range(0, ROWS, BR):
        row = start + tl.arange(0, BR).to(tl.int64)
        mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
        block = tl.load(parts + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0)
        accumulated += tl.sum(block.to(tl.float32), axis=0)
    tl.store(total + column, accumulated.to(total.dtype.element_ty), mask=column < COLUMNS)


def sum_rows(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum contiguous fp32 parts [n, ...] over their first dimension, to [...] in `dtype`; the same bits at every run.

    Kernels use it instead of atomic additions, whose order, and so whose last bits, change from run to run.
    """
    total = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    rows, columns = parts.shape[0], total.numel()
    tile_rows = min(32, triton.next_power_of_2(max(1, rows)))
    tile_columns = 2048 // tile_rows  # as much in flight for two parts a number as for many
    grid = (triton.cdiv(columns, tile_columns),)
    _sum_rows[grid](parts, total, rows, columns, BR=tile_rows, BC=tile_columns)
    return total
