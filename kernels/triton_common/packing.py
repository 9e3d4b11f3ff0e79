"""One layout for every kernel: sequences on one token axis, cut into chunks that never cross a boundary.

A batch [B, T] is B packed sequences of T tokens, so that kernels know no batches. Nothing here waits for the
GPU: where the number of chunks depends on the boundaries, the table has a bound's length and idle rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def boundaries(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """int32 [N+1]: where the sequences of x [B, T, ...] begin and end on the axis of its B·T tokens."""
    batch, time = x.shape[:2]
    if cu_seqlens is not None:
        return cu_seqlens
    return torch.arange(batch + 1, dtype=torch.int32, device=x.device) * time


def chunk_table(x: Tensor, cu_seqlens: Tensor | None, size: int) -> Tensor:
    """int32 [C, 2]: sequence and number within it, of every chunk of `size` tokens; −1, −1 in idle rows.

    Chunks stand in the order of the axis, those of one sequence together; the last of a sequence may be short.
    A batch has no idle rows; packed, C = ⌈T/size⌉ + N bounds Σ ⌈T_i/size⌉.
    """
    batch, time = x.shape[:2]
    if cu_seqlens is None:
        each = -(-time // size)
        row = torch.arange(batch * each, dtype=torch.int32, device=x.device)
        return torch.stack([row // each, row % each], dim=1)
    ends = ((cu_seqlens.diff() + size - 1) // size).cumsum(0)
    row = torch.arange(-(-time // size) + len(cu_seqlens) - 1, device=x.device)
    sequence = torch.searchsorted(ends, row, right=True)
    busy = sequence < len(ends)
    first = torch.nn.functional.pad(ends, (1, 0))[sequence.clamp(max=len(ends) - 1)]
    table = torch.stack([sequence, row - first], dim=1)
    return torch.where(busy[:, None], table, -1).to(torch.int32)


def first_chunks(x: Tensor, cu_seqlens: Tensor | None, size: int) -> Tensor:
    """int32 [N+1]: the row of `chunk_table` where each sequence begins, and where the busy rows end."""
    lengths = boundaries(x, cu_seqlens).diff()
    return torch.nn.functional.pad(((lengths + size - 1) // size).cumsum(0), (1, 0)).to(torch.int32)
