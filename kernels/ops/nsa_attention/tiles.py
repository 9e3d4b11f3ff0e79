"""Queries gathered by the block that they read, in tiles of equal height.

A block of keys is read by many queries. Copying the queries to it costs G·K numbers a pair of query and block
(G heads share a KV head), copying its l' keys to every query would cost l'·K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes

HEIGHT = 32
"""Queries a tile: enough for a matrix product, few enough that little of the last tile of a block is empty."""

STRETCH = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Numbers that the gathered rows of one stretch of queries should hold: the more, the fuller the tiles."""

PART = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Numbers that the scores of the tiles computed at once should hold; on a CPU what its cache takes."""


def stretches(batch: int, queries: int, numbers: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Yield (sequences, queries) to gather at once, when every query gathers so many numbers.

    Long stretches of few sequences: what a block's tiles are filled from is one sequence.
    """
    fits = max(1, STRETCH.get(device.type, STRETCH["cuda"]) // numbers)
    size = min(queries, fits)
    several = max(1, fits // max(1, size))
    for start in range(0, batch, several):
        for first in range(0, queries, size):
            yield slice(start, min(start + several, batch)), slice(first, min(first + size, queries))


@dataclass(frozen=True)
class Tiles:
    """Pairs of a query and a block, sorted by block; N tiles of R places, P = B·Hkv·C queries (times KV heads).

    source  int64 [N, R], which query stands at a place; P where none does
    place   int64 [P, n], where a query's n blocks stand; N·R where it has fewer
    row     int64 [N], a tile's block: (b·Hkv + h)·J + j, b counted from the first sequence of all
    edge    bool [N], whether a tile holds a query inside its own block
    """

    source: Tensor
    place: Tensor
    row: Tensor
    edge: Tensor

    def parts(self, group: int, select_size: int) -> Iterator[slice]:
        """Yield all tiles, as many at once as fit `PART`."""
        count, height = self.source.shape
        budget = PART.get(self.source.device.type, PART["cuda"])
        size = max(1, budget // (height * group * select_size))
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))

    def spread(self, x: Tensor, part: slice) -> Tensor:
        """Copy rows x [P + 1, G, D] of queries to their places in some tiles: [n, R·G, D]."""
        rows = self.source[part]
        return x.index_select(0, rows.flatten()).view(rows.shape[0], -1, x.shape[2])

    def places(self, x: Tensor, group: int, width: int, fill: float) -> Tensor:
        """Uninitialised results of every place, [N·R + 1, G, width]; the last, for a missing block, is `fill`."""
        out = x.new_empty(self.source.numel() + 1, group, width)
        out[-1] = fill
        return out

    def part_of(self, x: Tensor, part: slice) -> Tensor:
        """A view [n, R·G, D] of the places [N·R + 1, G, D] of some tiles."""
        height = self.source.shape[1]
        return x[part.start * height : part.stop * height].view(part.stop - part.start, -1, x.shape[2])

    def collect(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum over a query's blocks of weight [P, n, G] times place x [N·R + 1, G, D]: [P, G, D]."""
        # One pass over the rows, where indexing and then summing would write all of them once more.
        if weights is None:
            return F.embedding_bag(self.place, x.flatten(1), mode="sum").unflatten(1, x.shape[1:])
        group = x.shape[1]
        index = self.place[:, None] * group + torch.arange(group, device=x.device)[:, None]
        weights = weights.transpose(1, 2).flatten(0, 1).contiguous()
        total = F.embedding_bag(index.flatten(0, 1), x.flatten(0, 1), mode="sum", per_sample_weights=weights)
        return total.unflatten(0, (-1, group))


def make_tiles(chosen: Tensor, blocks: int, start: int, position: int, sizes: Sizes) -> Tiles:
    """Gather queries into tiles by their chosen blocks [B, C, Hkv, n] (int32, −1: none), ids below `blocks`.

    The first sequence is number `start`, the first query of each stands at `position`.
    """
    batch, queries, heads, n = chosen.shape
    height = min(HEIGHT, queries)
    chosen = chosen.transpose(1, 2).to(torch.int64)
    used = chosen >= 0
    base = torch.arange(batch * heads, device=chosen.device).view(batch, heads, 1, 1) * blocks
    groups = batch * heads * blocks
    group = torch.where(used, base + chosen, groups)
    query = torch.arange(queries, device=chosen.device)[:, None].expand_as(group)
    member = torch.zeros(groups + 1, queries, dtype=torch.int32, device=chosen.device)
    member[group, query] = 1
    rank = member.cumsum(1, dtype=torch.int32)
    tiles = -(-rank[:-1, -1] // height)
    ends = tiles.cumsum(0)
    row = torch.repeat_interleave(tiles)
    first = torch.cat([(ends - tiles) * height, ends[-1:] * height])
    total = row.shape[0] * height
    place = torch.where(used, first[group] + rank[group, query] - 1, total).reshape(-1, n)
    rows = batch * heads * queries
    source = torch.full((total + 1,), rows, device=chosen.device)
    source[place] = torch.arange(rows, device=chosen.device)[:, None].expand_as(place)
    source = source[:-1].view(-1, height)
    # Places are in order of time: if any query of a tile stands in the block, the first one does.
    edge = source[:, 0] % queries + position < (row % blocks + 1) * sizes.select_size
    return Tiles(source, place, row + start * heads * blocks, edge)
