"""Tokens in the order of their timelines."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_TIMELINES = 64
"""A counting sort sweeps its tokens once a timeline: past some dozens, comparing is the better way."""


@dataclass(frozen=True)
class Timelines:
    """The tokens of all heads, [B·T·H], sorted by (sequence, head, timeline) and, within those, by time.

    order       int64 [M], M = B·T·H: for every place in the sorted axis, the flat (b, t, h) that stands there
    places      int64 [M], its inverse
    positions   int64 [B, T, H], the token's position inside its timeline
    cu_seqlens  int32 [S+1], the timelines as segments of the sorted axis; S = sequences · H · n_timelines
    """

    order: Tensor
    places: Tensor
    positions: Tensor
    cu_seqlens: Tensor


def sort_timelines(assignment: Tensor, n_timelines: int, cu_seqlens: Tensor | None) -> Timelines:
    """Sort tokens by timeline; every shape follows from the arguments' shapes, so that it can be traced.

    assignment  integer [B, T, H], values in [0, n_timelines), not checked
    """
    batch, time, heads = assignment.shape
    sequence, sequences = _sequences(batch, time, cu_seqlens, assignment.device)
    head = torch.arange(heads, device=assignment.device)
    segment = ((sequence * heads + head) * n_timelines + assignment.long()).flatten()
    order = torch.argsort(segment, stable=True)
    counts = torch.zeros(sequences * heads * n_timelines, dtype=torch.int64, device=assignment.device)
    ends = counts.scatter_add(0, segment, torch.ones_like(segment)).cumsum(0)
    starts = torch.nn.functional.pad(ends, (1, 0))
    rank = torch.arange(segment.shape[0], device=assignment.device)
    places = torch.empty_like(order).scatter(0, order, rank)
    positions = (places - starts[segment]).view(batch, time, heads)
    return Timelines(order, places, positions, starts.to(torch.int32))


def _sequences(batch: int, time: int, cu_seqlens: Tensor | None, device: torch.device) -> tuple[Tensor, int]:
    """Every token's sequence, [B, T, 1] or a shape that broadcasts to it, and the number of sequences."""
    if cu_seqlens is None:
        return torch.arange(batch, device=device).view(batch, 1, 1), batch
    token = torch.arange(time, device=device)
    sequence = torch.searchsorted(cu_seqlens[1:].to(torch.int64), token, right=True)
    return sequence.view(1, time, 1), cu_seqlens.shape[0] - 1
