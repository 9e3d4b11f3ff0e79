"""Top-k of blocks: how important each block of tokens is to a query, and the n highest, which it reads in full."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes

TIE = 2.0**-39
"""Importances (a share of the group's attention, 0 to 1) closer than this tie: batches round differently."""

MOST = 1 << 22
"""Selection blocks that a rank has room for."""

UNKNOWN = 1 << 40
"""The steps of an importance that is NaN: more than those of any share."""

FORCED = (1 << 63) - 1
"""The rank of a block that is always selected."""


def importance(p: Tensor, blocks: int, sizes: Sizes) -> Tensor:
    """The importance of each block, Σ_i p_i·|block_i ∩ [j·l', (j+1)·l')|/l for j < blocks: p [..., M] -> [..., blocks].

    Every compression block is l/d strides and hands an equal share of p_i to each.
    """
    parts, per_block = sizes.block_size // sizes.stride, sizes.select_size // sizes.stride
    strides = blocks * per_block
    padded = F.pad(p, (parts - 1, strides - p.shape[-1]))
    shares = _sum(padded[..., part : part + strides] for part in range(parts))
    return _sum(shares[..., part::per_block] for part in range(per_block)) / parts


def _sum(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors, element by element; much faster than sum(-1) over an axis of two to four."""
    return reduce(torch.add, parts)


def block_topk(p: Tensor, positions: Tensor, last: int, sizes: Sizes) -> Tensor:
    """Select the blocks of queries at `positions` [C] ≤ last, int32 [..., C, n], −1 where there are fewer.

    p [..., C, M]: attention over compression blocks, averaged over the group of heads. Forced are the first
    block, the query's own and the one before; then the highest, at ties the lower index.
    """
    own = positions // sizes.select_size
    blocks = last // sizes.select_size + 1
    place = torch.arange(max(blocks, sizes.n_select), device=p.device)
    if blocks <= sizes.n_select:
        chosen = torch.where(place <= own[:, None], place, -1).to(torch.int32)
        return chosen.expand(*p.shape[:-1], -1)
    place = place[:blocks]
    rank = _ranks(p, place, sizes)
    forced = (place == 0) | (place == own[:, None]) | (place == own[:, None] - 1)
    rank = rank.masked_fill_(forced, FORCED).masked_fill_(place > own[:, None], -1)
    best = rank.topk(sizes.n_select, -1)
    return torch.where(best.values < 0, -1, best.indices).to(torch.int32)


def newest_block_topk(p: Tensor, time: int, sizes: Sizes) -> Tensor:
    """`block_topk` of the last of `time` tokens: p [..., M] -> int64 [..., n], fewer where there are fewer blocks."""
    blocks = sizes.selectable(time)
    place = torch.arange(blocks, device=p.device)
    if blocks <= sizes.n_select:
        return place.expand(*p.shape[:-1], -1)
    rank = _ranks(p, place, sizes)
    rank[..., 0] = FORCED
    rank[..., -2:] = FORCED
    return rank.topk(sizes.n_select, -1).indices


def _ranks(p: Tensor, place: Tensor, sizes: Sizes) -> Tensor:
    """Ranks int64 of the blocks `place` = 0, 1 …: higher for a higher importance, then a lower index."""
    steps = importance(p, len(place), sizes).double().div_(TIE).round_().nan_to_num_(UNKNOWN).to(torch.int64)
    return steps.mul_(MOST).add_(MOST - 1 - place)
