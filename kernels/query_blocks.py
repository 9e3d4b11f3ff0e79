"""Blocks of queries, each with the keys that it may see, so that scores are computed in memory linear in T."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.packing.boundaries import sequence_starts

LARGEST = 128
"""Queries a block: enough for matrix products, few enough that little of a causal block is masked."""

BUDGET = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Numbers that the largest tensor of a block should hold."""


@dataclass(frozen=True)
class Block:
    """Queries [first, last) of q and the keys [begin, end) that any of them sees.

    visible: bool [C, S], C = last − first, S = end − begin: whether a query sees a key, itself and the past of
    its own sequence; own: int64 [C], the query's own place among the S keys.
    """

    first: int
    last: int
    begin: int
    end: int
    visible: Tensor
    own: Tensor

    def rows(self, x: Tensor) -> Tensor:
        """The block's part of x [B, Tq, ...]."""
        return x[:, self.first : self.last]

    def keys(self, x: Tensor) -> Tensor:
        """The keys' part of x [B, Tk, ...]."""
        return x[:, self.begin : self.end]


def query_blocks(queries: int, keys: int, size: int, cu_seqlens: Tensor | None, device) -> Iterator[Block]:
    """Cut the queries into blocks of `size`. Query i stands at position i + keys − queries.

    cu_seqlens: int32 [N+1] for packed sequences (then queries = keys), read on the host.
    """
    offset = keys - queries
    starts = sequence_starts(cu_seqlens, keys, device)
    ends = [0] if cu_seqlens is None else cu_seqlens.tolist()
    for first in range(0, queries, size):
        last = min(first + size, queries)
        begin = max(end for end in ends if end <= first + offset)
        position = torch.arange(first + offset, last + offset, device=device)
        key = torch.arange(begin, last + offset, device=device)
        seen = (key <= position[:, None]) & (key >= starts[position][:, None])
        yield Block(first, last, begin, last + offset, seen, position - begin)


def block_size(numbers_a_query: int, device: torch.device) -> int:
    """The number of queries of a block when each needs that many numbers."""
    budget = BUDGET.get(device.type, BUDGET["cuda"])
    return min(LARGEST, max(1, budget // max(1, numbers_a_query)))
