"""Queries gathered by the block that they read, in tiles of equal height.

A block of keys is read by many queries. Copying the queries to it costs G·K numbers a pair of query and block
(G heads share a KV head), copying its l' keys to every query would cost l'·K.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

HEIGHT = 64
"""The most queries a tile."""

FULL = 4
"""Tiles a block, on average, that are worth more copies of it: half a tile a block is empty."""

STRETCH = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Numbers that the gathered rows of one stretch of queries should hold: the more, the fuller the tiles."""

PART = {"cpu": 1 << 17, "cuda": 1 << 27}
"""Numbers that the scores of the tiles computed at once should hold; on a CPU what its cache takes."""


def stretches(lanes: int, queries: int, numbers: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Yield (lanes, queries) to gather at once, when every query of a lane gathers so many numbers.

    Long stretches of few lanes: what a block's tiles are filled from is one lane.
    """
    if numbers == 0:
        return
    fits = max(1, STRETCH.get(device.type, STRETCH["cuda"]) // numbers)
    size = -(-queries // -(-queries // fits)) if queries else 1
    several = max(1, fits // size)
    for start in range(0, lanes, several):
        for first in range(0, queries, size):
            yield slice(start, min(start + several, lanes)), slice(first, min(first + size, queries))


class Scratch:
    """Memory by name that a loop writes to again and again: fresh memory costs more than what is done with it."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The memory of that name, as an uninitialised tensor."""
        count = math.prod(shape)
        if name not in self.held or self.held[name].numel() < count:
            self.held[name] = self.like.new_empty(count)
        return self.held[name][:count].view(shape)


@dataclass(frozen=True)
class Tiles:
    """Pairs of a query and a block, sorted by block; N tiles of R places, P = L·C queries (times KV heads).

    source  int64 [N, R], which query stands at a place; P where none does
    place   int64 [P, n], where a query's n blocks stand
    row     int64 [N], a tile's block: lane·J + j, lanes counted from the first of all
    """

    source: Tensor
    place: Tensor
    row: Tensor

    def parts(self, group: int, select_size: int) -> Iterator[slice]:
        """Yield all tiles, as many at once as fit `PART`."""
        count, height = self.source.shape
        budget = PART.get(self.source.device.type, PART["cuda"])
        size = max(1, budget // (height * group * select_size))
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))

    def spread(self, x: Tensor, part: slice, scratch: Scratch) -> Tensor:
        """Copy rows x [P + 1, G, D] of queries to their places in some tiles: [n, R·G, D]."""
        rows = self.source[part]
        to = scratch("rows", rows.numel(), *x.shape[1:])
        return torch.index_select(x, 0, rows.flatten(), out=to).view(rows.shape[0], -1, x.shape[2])

    def blocks(self, x: Tensor, part: slice, name: str, scratch: Scratch) -> Tensor:
        """Copy blocks x [L·J, …] to the tiles that read them: [n, …]."""
        rows = self.row[part]
        return torch.index_select(x, 0, rows, out=scratch(name, len(rows), *x.shape[1:]))

    def places(self, name: str, scratch: Scratch, group: int, width: int) -> Tensor:
        """Room for results of every place, [N·R, G, width]."""
        return scratch(name, self.source.numel(), group, width)

    def part_of(self, x: Tensor, part: slice) -> Tensor:
        """A view [n, R·G, D] of the places [N·R, G, D] of some tiles."""
        height = self.source.shape[1]
        return x[part.start * height : part.stop * height].view(part.stop - part.start, -1, x.shape[2])

    def collect(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum over a query's blocks of weight [P, n, G] times place x [N·R, G, D]: [P, G, D]."""
        # One pass over the rows, where indexing and then summing would write all of them once more.
        if weights is None:
            return F.embedding_bag(self.place, x.flatten(1), mode="sum").unflatten(1, x.shape[1:])
        group = x.shape[1]
        index = self.place[:, None] * group + torch.arange(group, device=x.device)[:, None]
        weights = weights.transpose(1, 2).flatten(0, 1).contiguous()
        total = F.embedding_bag(index.flatten(0, 1), x.flatten(0, 1), mode="sum", per_sample_weights=weights)
        return total.unflatten(0, (-1, group))


def make_tiles(chosen: Tensor, blocks: int, start: int) -> Tiles:
    """Gather queries into tiles by their chosen blocks [L, C, n] (int32), ids below `blocks`.

    The first lane is number `start`.
    """
    lanes, queries, n = chosen.shape
    groups = lanes * blocks
    height = _height(chosen.numel() / groups)
    base = torch.arange(lanes, device=chosen.device).view(lanes, 1, 1) * blocks
    group = base + chosen
    query = torch.arange(queries, device=chosen.device)[:, None].expand_as(group)
    member = torch.zeros(groups, queries, dtype=torch.int32, device=chosen.device)
    member[group, query] = 1
    rank = member.cumsum(1, dtype=torch.int32)
    tiles = -(-rank[:, -1] // height)
    row = torch.repeat_interleave(tiles)
    first = (tiles.cumsum(0) - tiles) * height
    place = (first[group] + rank[group, query] - 1).view(-1, n)
    rows = lanes * queries
    source = torch.full((row.shape[0] * height,), rows, device=chosen.device)
    source[place] = torch.arange(rows, device=chosen.device)[:, None].expand_as(place)
    return Tiles(source.view(-1, height), place, row + start * blocks)


def _height(pairs: float) -> int:
    """Queries a tile where a block has so many on average: most of a tile should be filled."""
    return min(HEIGHT, max(1, 1 << int(pairs / FULL).bit_length() - 1)) if pairs >= FULL else 1
