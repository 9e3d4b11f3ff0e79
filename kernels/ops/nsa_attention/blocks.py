"""The overlapping blocks that compression summarises, and the sizes of blocks and window."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.packing.boundaries import ragged_rows


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
