"""Two ways to read selected keys, a mask over many keys or a copy of each, and the queries that select a key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GATHER_COST = 48
"""The number of masked keys that cost as much as a gathered one, with one query head a KV head, on a CPU core.

A gathered key is copied for one query and serves its group of heads; a masked one is read once for a block.
"""


def gathers(selected: int, keys: int, group: int) -> bool:
    """Return whether copying `selected` keys for every query is cheaper than a mask over `keys` keys."""
    return selected * GATHER_COST <= keys * group


def selected_mask(indices: Tensor, keys: int) -> Tensor:
    """A mask [B, C, keys], true at the indices [B, C, n]; −1 selects nothing."""
    at = torch.where(indices < 0, keys, indices).to(torch.int64)
    mask = torch.zeros(*indices.shape[:2], keys + 1, dtype=torch.bool, device=indices.device)
    return mask.scatter_(-1, at, True)[..., :keys]


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Copy keys x [B, T, H, D] at indices [B, C, n] to [B, C, H, n, D]; −1 copies the first key."""
    batch, time, heads, width = x.shape
    sequence = torch.arange(batch, device=x.device).view(-1, 1, 1, 1) * time
    head = torch.arange(heads, device=x.device).view(-1, 1)
    rows = (sequence + indices.clamp_min(0).unsqueeze(2)) * heads + head
    return x.reshape(-1, width).index_select(0, rows.flatten()).view(*rows.shape, width)


def spans(indices: Tensor, size: int, keys: int) -> list[tuple[int, int, int, int]]:
    """Cut queries into blocks of `size`: (first, last, begin, end), where [first, last) select among [begin, end).

    Reads the indices [B, Tq, n] on the host, once.
    """
    queries = indices.shape[1]
    lowest = torch.where(indices < 0, keys - 1, indices).amin((0, 2)).tolist()
    highest = indices.amax((0, 2)).tolist()
    out = []
    for first in range(0, queries, size):
        last = min(first + size, queries)
        begin = min(lowest[first:last])
        out.append((first, last, begin, max(begin, *highest[first:last]) + 1))
    return out


def shifted(indices: Tensor, begin: int) -> Tensor:
    """The indices [B, C, n] relative to key `begin`; −1 stays."""
    return torch.where(indices < 0, -1, indices - begin)


# The queries that select a key: lists of keys by query, turned into lists of queries by block of keys.

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
