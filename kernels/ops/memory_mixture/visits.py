"""Tokens sorted by the memory that they visit: what goes to one memory is a sequence of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Visits:
    """All (token, route) pairs, P = B·T·R, sorted by (sequence, memory) and, within those, by time.

    token       int64 [P], for every place in the sorted axis the flat (b, t) of its token
    entry       int64 [P], the flat (b, t, memory)
    places      int64 [P], for every flat (b, t, r) its place
    cu_seqlens  int32 [N·M+1], the visits of every memory as segments of the sorted axis
    """

    token: Tensor
    entry: Tensor
    places: Tensor
    cu_seqlens: Tensor


def sort_visits(routes: Tensor, memories: int, cu_seqlens: Tensor | None) -> Visits:
    """Every shape follows from the arguments' shapes, so that it can be traced. routes [B, T, R]: not checked."""
    batch, time, slots = routes.shape
    device = routes.device
    token = torch.arange(batch * time, device=device)
    if cu_seqlens is None:
        sequence, sequences = token // time, batch
    else:
        sequence = torch.searchsorted(cu_seqlens[1:].to(torch.int64), token, right=True)
        sequences = cu_seqlens.shape[0] - 1
    memory = routes.reshape(-1, slots).to(torch.int64)
    segment = (sequence.unsqueeze(1) * memories + memory).flatten()
    order = torch.argsort(segment, stable=True)
    counts = torch.zeros(sequences * memories, dtype=torch.int64, device=device)
    ends = counts.scatter_add(0, segment, torch.ones_like(segment)).cumsum(0)
    places = torch.empty_like(order).scatter(0, order, torch.arange(order.shape[0], device=device))
    entry = (token.unsqueeze(1) * memories + memory).flatten().index_select(0, order)
    boundaries = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
    return Visits(order // slots, entry, places, boundaries)
