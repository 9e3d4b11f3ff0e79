"""The bounds of packed sequences, and the sequence that owns each token or row."""

from __future__ import annotations

import torch
from torch import Tensor


def boundaries(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The bounds of the sequences of x [B, T, ...] on the axis of its B·T tokens, int32 [N+1].

    cu_seqlens is returned as it is; without it a batch is B packed sequences of T tokens.
    """
    batch, time = x.shape[:2]
    if cu_seqlens is not None:
        return cu_seqlens
    return multiples(time, batch + 1, x.device)


def multiples(step: int, count: int, device: torch.device) -> Tensor:
    """0, step, 2·step … int32 [count], for steps from 0 on, by one operator: on a GPU each is a launch."""
    if step == 0:
        return torch.zeros(count, dtype=torch.int32, device=device)
    return torch.arange(0, (count - 1) * step + 1, step, dtype=torch.int32, device=device)


def token_sequences(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The number of the sequence that each token belongs to, int64 [T]; cu_seqlens integer [N+1]."""
    token = torch.arange(tokens, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].to(torch.int64), token, right=True)


def sequence_starts(cu_seqlens: Tensor | None, tokens: int, device: torch.device) -> Tensor:
    """The first token of the sequence that each token belongs to, int64 [T]; 0 where nothing is packed."""
    if cu_seqlens is None:
        return torch.zeros(tokens, dtype=torch.int64, device=device)
    return cu_seqlens[token_sequences(cu_seqlens, tokens)].to(torch.int64)


def ragged_rows(counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Sequence of each row, and the row's number within it, where sequence i owns the next counts[i] rows.

    counts   integer [N], N ≥ 1
    rows     length of the axis, at least Σ counts. Rows after the last sequence's count on in sequence N − 1:
             their number is at least counts[N − 1]
    returns  int64 [rows] twice
    """
    ends = counts.cumsum(0)
    row = torch.arange(rows, device=counts.device)
    sequence = torch.searchsorted(ends, row, right=True).clamp_max(counts.shape[0] - 1)
    return sequence, row - (ends - counts)[sequence]
