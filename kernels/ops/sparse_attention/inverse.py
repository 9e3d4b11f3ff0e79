"""The queries that select a key: lists of keys by query, turned into lists of queries by block of keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64
"""Keys a block: as many as one integer has bits, and a tile of matrix products."""


@dataclass(frozen=True)
class Selectors:
    """The queries that select any key of a block, block after block, in the queries' order.

    first  int64 [B·⌈Tk/BLOCK⌉ + 1]: where a block's queries begin in the other two, and where all end
    query  int64 [E], E = B·Tq·n: a query's row on the axis of B·Tq; entries after the last block's end are unused
    bits   int64 [E]: bit i says that this query selects the block's key i
    """

    first: Tensor
    query: Tensor
    bits: Tensor


def selectors(indices: Tensor, keys: int) -> Selectors:
    """Invert indices [B, Tq, n] into `keys` keys, −1 where unused. Nothing waits for the GPU.

    One sort of integers, so that memory is that of a few index lists, whatever the number of keys. It sorts by
    (block, query, key) and not by block alone (`sort_by_group`), because a query that selects several keys of a
    block stands there once. The same lists give the same bits at every run.
    """
    batch, queries, _ = indices.shape
    blocks, rows = -(-keys // BLOCK), batch * queries
    row = torch.arange(rows, device=indices.device).view(batch, queries, 1)
    key = indices.to(torch.int64)
    pair = (row // queries * blocks + key // BLOCK) * rows + row
    code = torch.where(key < 0, batch * blocks * rows * BLOCK, pair * BLOCK + key % BLOCK)
    code = code.flatten().sort().values
    pair = code // BLOCK
    new = torch.ones_like(pair, dtype=torch.bool)
    new[1:] = pair[1:] != pair[:-1]
    # unused places keep their own slots, all after the pairs': millions of additions to one slot would wait for another
    place = torch.where(
        pair == batch * blocks * rows, torch.arange(len(pair), device=pair.device), new.cumsum(0) - 1
    )
    pairs = torch.full_like(pair, batch * blocks * rows).scatter_(0, place, pair)
    bits = torch.zeros_like(pair).scatter_add_(0, place, torch.ones_like(pair) << code % BLOCK)
    ends = torch.arange(batch * blocks + 1, device=indices.device) * rows
    return Selectors(torch.searchsorted(pairs, ends), pairs % rows, bits)
