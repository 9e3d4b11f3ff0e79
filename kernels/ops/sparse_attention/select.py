"""Two ways to read selected keys: a mask over many keys, or a gathered copy of each."""

from __future__ import annotations

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
