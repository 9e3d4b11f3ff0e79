"""A packed axis of tokens, and its axis of compressed blocks, as a few rectangular batches and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.segments.plan import make_plan


@dataclass(frozen=True)
class Axis:
    """rooms: [(sequences, places)] of every batch; place: int64, where on all of them a packed row stands."""

    rooms: list[tuple[int, int]]
    place: Tensor

    def spread(self, x: Tensor) -> list[Tensor]:
        """x [1, ≥ rows, …] -> [sequences, places, …] for every batch, zeros where nothing stands."""
        sizes = [sequences * places for sequences, places in self.rooms]
        whole = x.new_zeros(sum(sizes), *x.shape[2:])
        whole.index_copy_(0, self.place, x[0, : self.place.shape[0]])
        parts = whole.split(sizes)
        return [part.unflatten(0, room) for part, room in zip(parts, self.rooms, strict=True)]

    def collect(self, parts: Sequence[Tensor]) -> Tensor:
        """[sequences, places, …] of every batch -> [1, rows, …]."""
        return torch.cat([part.flatten(0, 1) for part in parts]).index_select(0, self.place).unsqueeze(0)


def packed_axes(cu_seqlens: Tensor, heads: int, sizes: Sizes) -> tuple[Axis, Axis]:
    """The axes of tokens and of compressed blocks. Sequences of about one length share a batch.

    Shorter ones end in tokens of zeros, which causal results before them do not notice. Reads cu_seqlens on the
    host.
    """
    plan = make_plan(cu_seqlens, heads, may_pad=True)
    ends = cu_seqlens.tolist()
    device = cu_seqlens.device
    place = torch.arange(ends[-1], device=device) if plan.restore is None else plan.restore
    rooms = [(sequences, sizes.compressed(length)) for sequences, length in plan.shapes]
    first_block, row, block = {}, 0, 0
    for (sequences, length), (_, blocks) in zip(plan.shapes, rooms, strict=True):
        for _ in range(sequences):
            first_block[row] = block
            row, block = row + length, block + blocks
    places: list[int] = []
    firsts = place[cu_seqlens[:-1].clamp_max(ends[-1] - 1)].tolist()
    for first, (start, stop) in zip(firsts, itertools.pairwise(ends), strict=True):
        if stop > start:
            begin = first_block[first]
            places += range(begin, begin + sizes.compressed(stop - start))
    return Axis(plan.shapes, place), Axis(rooms, torch.tensor(places, dtype=torch.int64, device=device))
