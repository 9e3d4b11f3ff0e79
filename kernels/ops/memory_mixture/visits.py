"""Tokens sorted by the memory that they visit: the tokens routed to one memory form a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.grouping import sort_by_group
from kernels.packing.boundaries import boundaries, token_sequences


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
    """Sort all (token, route) pairs of routes [B, T, R], not checked. Shapes follow from shapes: it can be traced."""
    batch, time, slots = routes.shape
    cu, token = boundaries(routes, cu_seqlens), torch.arange(batch * time, device=routes.device)
    memory = routes.reshape(-1, slots).to(torch.int64)
    segment = token_sequences(cu, batch * time).unsqueeze(1) * memories + memory
    by_memory = sort_by_group(segment.flatten(), (cu.shape[0] - 1) * memories)
    entry = (token.unsqueeze(1) * memories + memory).flatten().index_select(0, by_memory.order)
    token = by_memory.order // slots
    return Visits(token, entry, by_memory.places(), by_memory.offsets.to(torch.int32))
