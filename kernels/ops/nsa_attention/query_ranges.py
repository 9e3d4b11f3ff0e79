"""Blocks of queries that read ranges of keys: all compressed blocks, the window, and what every selection holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes

LARGEST, SMALLEST = 128, 32
"""Queries a block: enough for matrix products, few enough that little of what a block computes is hidden."""

ALIGNED = 16
"""Ranges have a multiple of so many keys where they can: products of other widths take up to three times as long."""


@dataclass(frozen=True)
class QueryBlock:
    """Queries `here`, the keys `seen` that any of them sees, and a mask for the keys that some of them do not see.

    mask  [C·G, columns] to add to the scores: 0, or −∞ where hidden; every query sees a key
    """

    here: slice
    seen: tuple[slice, ...]
    mask: Tensor

    @property
    def queries(self) -> int:
        """The number of queries."""
        return self.here.stop - self.here.start

    def rows(self, x: Tensor, lanes: slice, group: int) -> Tensor:
        """A view of the block's part of x [L, Tq·G, D]."""
        return x[lanes, self.here.start * group : self.here.stop * group]

    def keys(self, x: Tensor, lanes: slice) -> Tensor:
        """The seen part of x [L, S, D]: a view where that is one range."""
        parts = [x[lanes, seen] for seen in self.seen]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def add_to(self, x: Tensor, lanes: slice, more: Tensor) -> None:
        """Add `more` [L, columns, D] to the seen part of x."""
        sizes = [seen.stop - seen.start for seen in self.seen]
        for seen, part in zip(self.seen, more.split(sizes, 1), strict=True):
            x[lanes, seen].add_(part)


@dataclass(frozen=True)
class Place:
    """Where queries stand: query i of `queries` at position i + time − queries; `like` has the masks' dtype, device."""

    queries: int
    time: int
    group: int
    like: Tensor

    @property
    def offset(self) -> int:
        """The position of the first query."""
        return self.time - self.queries

    def first_choosing(self, sizes: Sizes) -> int:
        """The first query with more than n selection blocks before or around it; `queries` where there is none."""
        return min(self.queries, max(0, sizes.n_select * sizes.select_size - self.offset))

    def positions(self, first: int, last: int) -> Tensor:
        """Positions of the queries [first, last)."""
        return torch.arange(first, last, device=self.like.device) + self.offset

    def tokens(self, begin: int, end: int) -> Tensor:
        """The tokens [begin, end)."""
        return torch.arange(begin, end, device=self.like.device)

    def mask(self, hidden: Tensor) -> Tensor:
        """bool [C, columns] as a mask [C·G, columns] to add."""
        shown = self.like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return shown.repeat_interleave(self.group, 0)


def compression_ranges(place: Place, sizes: Sizes, blocks: int) -> Iterator[QueryBlock]:
    """Blocks of the queries that see a compressed block, over those of `blocks` that end at them or before."""
    for first, last in _cut(max(0, sizes.block_size - 1 - place.offset), place.queries, LARGEST):
        seen = min(blocks, _aligned(sizes.compressed(place.offset + last)))
        ends = place.tokens(0, seen) * sizes.stride + sizes.block_size - 1
        mask = place.mask(ends > place.positions(first, last)[:, None])
        yield QueryBlock(slice(first, last), (slice(0, seen),), mask)


def window_ranges(place: Place, window: int) -> Iterator[QueryBlock]:
    """Blocks of queries over the last `window` tokens of each."""
    masks: dict[tuple[int, int], Tensor] = {}
    for first, last in _cut(0, place.queries, min(LARGEST // 2, max(SMALLEST, window // 4))):
        end = place.offset + last
        begin = max(0, end - _aligned(last - first + window - 1))
        same = end - begin, last - first
        if same not in masks:
            age = place.positions(first, last)[:, None] - place.tokens(begin, end)
            masks = {same: place.mask((age < 0) | (age >= window))}
        yield QueryBlock(slice(first, last), (slice(begin, end),), masks[same])


def prefix_ranges(place: Place, sizes: Sizes) -> Iterator[QueryBlock]:
    """Blocks of the queries that have at most n selection blocks before or around them: they read every token."""
    for first, last in _cut(0, place.first_choosing(sizes), LARGEST // 2):
        end = place.offset + last
        mask = place.mask(place.tokens(0, end) > place.positions(first, last)[:, None])
        yield QueryBlock(slice(first, last), (slice(0, end),), mask)


def forced_ranges(place: Place, sizes: Sizes) -> Iterator[QueryBlock]:
    """Blocks of the other queries, over what each of them reads without a choice: blocks 0, b − 1 and b."""
    size, masks = sizes.select_size, {}
    several = size * max(1, SMALLEST // size)
    for first, last in _cut(place.first_choosing(sizes), place.queries, several, place.offset):
        position, end = place.offset + first, place.offset + last
        begin = (position // size - 1) * size
        same = position - begin, last - first
        if same not in masks:
            token, t = place.tokens(begin, end), place.positions(first, last)[:, None]
            hidden = (token > t) | (token // size < t // size - 1)
            masks = {same: place.mask(F.pad(hidden, (size, 0)))}
        yield QueryBlock(slice(first, last), (slice(0, size), slice(begin, end)), masks[same])


def _aligned(keys: int) -> int:
    """The next multiple of `ALIGNED`."""
    return -(-keys // ALIGNED) * ALIGNED


def _cut(first: int, last: int, size: int, offset: int = 0) -> Iterator[tuple[int, int]]:
    """Cut [first, last) into blocks of `size` that begin, but for the first, where offset + i is a multiple of it."""
    while first < last:
        stop = min(last, first + size - (first + offset) % size)
        yield first, stop
        first = stop
