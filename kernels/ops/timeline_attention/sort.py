"""Tokens in the order of their timelines."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.grouping import sort_by_group
from kernels.packing.boundaries import boundaries, token_sequences

MAX_TIMELINES = 64
"""A counting sort reads its tokens once a timeline: beyond a few dozen, a comparison sort is faster."""


@dataclass(frozen=True)
class Timelines:
    """The tokens of all heads, [B·T·H], sorted by (sequence, head, timeline) and, within those, by time.

    order       int64 [M], M = B·T·H: for every place in the sorted axis, its flat (b, t, h)
    places      int64 [M], its inverse
    positions   int64 [B, T, H], the token's position inside its timeline
    cu_seqlens  int32 [S+1], the timelines as segments of the sorted axis; S = sequences · H · n_timelines
    """

    order: Tensor
    places: Tensor
    positions: Tensor
    cu_seqlens: Tensor


def sort_timelines(assignment: Tensor, n_timelines: int, cu_seqlens: Tensor | None) -> Timelines:
    """Sort the tokens of all heads by timeline; can be traced, as `sort_by_group` can.

    assignment  integer [B, T, H], values in [0, n_timelines), not checked
    """
    batch, time, heads = assignment.shape
    cu = boundaries(assignment, cu_seqlens)
    sequence = token_sequences(cu, batch * time).view(batch, time, 1)
    head = torch.arange(heads, device=assignment.device)
    segment = ((sequence * heads + head) * n_timelines + assignment.long()).flatten()
    by_timeline = sort_by_group(segment, (cu.shape[0] - 1) * heads * n_timelines)
    places = by_timeline.places()
    positions = (places - by_timeline.offsets[segment]).view(batch, time, heads)
    return Timelines(by_timeline.order, places, positions, by_timeline.offsets.to(torch.int32))
