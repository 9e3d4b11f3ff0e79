"""The blocks of native sparse attention: their sizes, compression's overlapping blocks, and the top-k of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.packing import ragged_rows


@dataclass(frozen=True)
class Sizes:
    """The sizes of native sparse attention, in tokens.

    block_size    l, of a compression block
    stride        d, between the first tokens of two compression blocks
    select_size   l', of a selection block
    n_select      n, selection blocks that a query reads
    window        w, tokens that the sliding branch sees

    Raises ValueError unless stride divides block_size and select_size, n_select ≥ 3 and window ≥ 1.
    """

    block_size: int
    stride: int
    select_size: int
    n_select: int
    window: int

    def __post_init__(self) -> None:
        if min(self.block_size, self.stride, self.select_size) < 1:
            raise ValueError(
                f"nsa_attention needs block_size, stride and select_size of at least 1, got {self}"
            )
        if self.block_size % self.stride or self.select_size % self.stride:
            raise ValueError(
                f"nsa_attention needs a stride that divides block_size and select_size, got {self}"
            )
        if self.n_select < 3 or self.window < 1:
            raise ValueError(f"nsa_attention needs n_select ≥ 3 and window ≥ 1, got {self}")

    def compressed(self, time: int) -> int:
        """The number of compression blocks that end inside a sequence of `time` tokens."""
        return max(0, (time - self.block_size) // self.stride + 1)

    def selectable(self, time: int) -> int:
        """The number of selection blocks that a sequence of `time` tokens has begun."""
        return -(-time // self.select_size)


def nsa_blocks(x: Tensor, *, block_size: int, stride: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """Cut every sequence into the overlapping blocks [i·d, i·d + l) that end inside it, l = block_size, d = stride.

    x           [B, T, H, D]
    block_size  a multiple of stride
    cu_seqlens  int32 [N+1] for packed sequences (B = 1): blocks start anew in each, and follow one another
    returns     [B, M, l, H, D]; M = ⌊(T − l)/d⌋ + 1, or 0. Packed: M = ⌊T/d⌋, which is room for the blocks of
                any N sequences; the blocks come first, the other places are undefined

    Raises ValueError if stride does not divide block_size.
    Source: Yuan et al. 2025, Native Sparse Attention, equation 7.
    """
    if block_size % stride:
        raise ValueError(f"nsa_blocks needs a stride that divides block_size, got {stride} and {block_size}")
    if cu_seqlens is not None:
        begin = packed_starts(cu_seqlens, x.shape[1], block_size, stride)
        tokens = begin[:, None] + torch.arange(block_size, device=x.device)
        rows = tokens.clamp_max(x.shape[1] - 1).flatten()
        return x.index_select(1, rows).unflatten(1, tokens.shape)
    blocks = max(0, (x.shape[1] - block_size) // stride + 1)
    if blocks == 0:
        return x.new_zeros(x.shape[0], 0, block_size, *x.shape[2:])
    parts = block_size // stride
    strides = x[:, : (blocks + parts - 1) * stride].unflatten(1, (-1, stride))
    return torch.cat([strides[:, part : part + blocks] for part in range(parts)], 2)


def packed_starts(cu_seqlens: Tensor, time: int, block_size: int, stride: int) -> Tensor:
    """The token at which the block of each place on the axis of compressed blocks begins, int64 [⌊T/d⌋]."""
    sequence, number = ragged_rows(packed_counts(cu_seqlens, block_size, stride), time // stride)
    return cu_seqlens[sequence].to(torch.int64) + number * stride


def packed_counts(cu_seqlens: Tensor, block_size: int, stride: int) -> Tensor:
    """The number of compressed blocks of every packed sequence, [N] in cu_seqlens' dtype."""
    return ((cu_seqlens.diff() - block_size) // stride + 1).clamp_min(0)


def pieces(cu_seqlens: Tensor | None, time: int, sizes: Sizes) -> list[tuple[slice, slice]]:
    """The tokens and the compressed blocks of every sequence, as slices of their axes; reads cu_seqlens on the host.

    cu_seqlens [N+1] -> N pairs; None: one sequence of `time` tokens.
    """
    if cu_seqlens is None:
        return [(slice(0, time), slice(0, sizes.compressed(time)))]
    out, block = [], 0
    ends = cu_seqlens.tolist()
    for start, stop in itertools.pairwise(ends):
        count = sizes.compressed(stop - start)
        if stop > start:
            out.append((slice(start, stop), slice(block, block + count)))
        block += count
    return out


# The top-k: how important each block of tokens is to a query, and the n highest, which it reads in full.

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
