"""Which rows and keys belong together: rows sorted by group, masks of selected keys, blocks of queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.packing import sequence_starts

# A stable sort by group: the rows of a group next to each other, in their original order.


@dataclass(frozen=True)
class Grouped:
    """Rows sorted by group, and by row within a group.

    order    int64 [M], the row at each place of the sorted axis
    offsets  int64 [groups + 1], the place where each group begins, and where the last ends
    """

    order: Tensor
    offsets: Tensor

    def places(self) -> Tensor:
        """The place of each row on the sorted axis, int64 [M]: the inverse of `order`."""
        place = torch.arange(self.order.shape[0], device=self.order.device)
        return torch.empty_like(self.order).scatter(0, self.order, place)


def sort_by_group(group: Tensor, groups: int) -> Grouped:
    """Sort rows by their group; group int64 [M], values in [0, groups), not checked.

    Every shape follows from the arguments' shapes, so that it can be traced, and nothing waits for the GPU.
    """
    ordered, order = group.sort(stable=True)
    return Grouped(order, torch.searchsorted(ordered, torch.arange(groups + 1, device=group.device)))


# Masks of the keys that queries selected: numbers to add or multiply, and packed, eight a byte, for the backward.
#
# PyTorch fills under a mask of booleans one number at a time; arithmetic on a mask of numbers runs in vectors.

HIDDEN = -1e30
"""Added to the scores of keys that are hidden: a softmax gives them exactly 0, and no infinity meets another."""


def numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where the mask bool [..., S] is true, else 0: [..., S] of this dtype."""
    return mask.view(torch.uint8).to(dtype)


def penalties(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask bool [..., S] is true, else HIDDEN: [..., S] of this dtype."""
    return numbers(mask, dtype).sub_(1).mul_(-HIDDEN)


def pack(mask: Tensor) -> Tensor:
    """Bits uint8 [..., ⌈S/8⌉] of a mask bool [..., S]."""
    return torch.from_numpy(np.packbits(mask.numpy(), axis=-1))


def unpack(bits: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """`numbers` [..., S] of a mask, from its bits uint8 [..., ⌈S/8⌉]: 1 where it was true, else 0.

    keys: S.
    """
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=-1, count=keys)).to(dtype)


# Blocks of queries, each with the keys that it may see, so that scores take memory linear in T.

LARGEST = 128
"""Queries a block: enough for matrix products, few enough that little of a causal block is masked."""

BUDGET = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Numbers that the largest tensor of a block should hold."""


@dataclass(frozen=True)
class Block:
    """Queries [first, last) of q and the keys [begin, end) that any of them sees.

    visible: bool [C, S], C = last − first, S = end − begin: whether a query sees a key, itself and the past of
    its own sequence; own: int64 [C], the query's own place among the S keys; starts: int64 [S], where each key's
    sequence begins, counted from `begin`.
    """

    first: int
    last: int
    begin: int
    end: int
    visible: Tensor
    own: Tensor
    starts: Tensor

    def rows(self, x: Tensor) -> Tensor:
        """The block's part of x [B, Tq, ...]."""
        return x[:, self.first : self.last]

    def keys(self, x: Tensor) -> Tensor:
        """The keys' part of x [B, Tk, ...]."""
        return x[:, self.begin : self.end]


def query_blocks(
    queries: int,
    keys: int,
    size: int,
    cu_seqlens: Tensor | None,
    device: torch.device,
    at: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Cut the queries into blocks of `size`. Query i stands at position i + keys − queries.

    cu_seqlens: int32 [N+1] for packed sequences (then queries = keys), read on the host; at: rising positions of other
    queries.
    """
    at = range(keys - queries, keys) if at is None else at
    starts = sequence_starts(cu_seqlens, keys, device)
    ends = [0] if cu_seqlens is None else cu_seqlens.tolist()
    for first in range(0, len(at), size):
        some = at[first : first + size]
        begin, last = max(end for end in ends if end <= some[0]), some[-1] + 1
        even = isinstance(some, range)
        position = (
            torch.arange(some.start, some.stop, some.step, device=device)
            if even
            else torch.tensor(some, device=device)
        )
        key = torch.arange(begin, last, device=device)
        seen = (key <= position[:, None]) & (key >= starts[position][:, None])
        yield Block(first, first + len(some), begin, last, seen, position - begin, starts[begin:last] - begin)


def block_size(numbers_a_query: int, device: torch.device) -> int:
    """The number of queries of a block when each needs that many numbers."""
    budget = BUDGET.get(device.type, BUDGET["cuda"])
    return min(LARGEST, max(1, budget // max(1, numbers_a_query)))
