"""Packed sequences as chunks of one size that never cross a boundary: the layout of every Triton kernel.

A batch [B, T] is B packed sequences of T tokens, so that kernels know no batches. Nothing here waits for the
GPU: where the number of chunks depends on the boundaries, the table has a bound's length and idle rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.packing.boundaries import multiples, ragged_rows


def chunk_table(x: Tensor, cu_seqlens: Tensor | None, size: int) -> Tensor:
    """Sequence and number within it of every chunk of `size` tokens of x [B, T, ...]; −1, −1 in idle rows.

    Chunks stand in the order of the axis, those of one sequence together; the last of a sequence may be short.
    A batch has no idle rows; packed, C = ⌊(T + N·(size − 1))/size⌋, the most that N sequences may need.

    returns  int32 [C, 2]
    """
    batch, time = x.shape[:2]
    if cu_seqlens is None:
        each = -(-time // size)
        # A pair is the two halves of one integer, the number the upper one: one operator, not four, for one sequence.
        pairs = torch.arange(0, each * 2**32, 2**32, device=x.device)
        if batch > 1:
            pairs = torch.arange(batch, device=x.device)[:, None] + pairs
        return pairs.view(torch.int32).view(-1, 2)
    counts = chunk_counts(cu_seqlens, size)
    sequence, number = ragged_rows(counts, most_chunks(time, counts.shape[0], size))
    table = torch.stack([sequence, number], dim=1)
    return torch.where((number < counts[sequence])[:, None], table, -1).to(torch.int32)


def first_chunks(x: Tensor, cu_seqlens: Tensor | None, size: int) -> Tensor:
    """The row of `chunk_table` where each sequence begins, and where the busy rows end, int32 [N+1]."""
    if cu_seqlens is None:
        batch, time = x.shape[:2]
        return multiples(-(-time // size), batch + 1, x.device)
    return F.pad(chunk_counts(cu_seqlens, size).cumsum(0), (1, 0)).to(torch.int32)


def chunk_counts(cu_seqlens: Tensor, size: int) -> Tensor:
    """The number of chunks of every sequence, ⌈length/size⌉, [N] in cu_seqlens' dtype."""
    return (cu_seqlens.diff() + size - 1) // size


def most_chunks(tokens: int, sequences: int, size: int) -> int:
    """The most chunks that so many tokens may need, however they are divided among the sequences."""
    return (tokens + sequences * (size - 1)) // size
