"""Operations that need all time at once and are each head's own: paths, timelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from zoo.context_parallel.swap import to_heads, to_time

if TYPE_CHECKING:
    from zoo.context import Context


def by_heads(ctx: Context, read: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """`read(*inputs, cu_seqlens=...)`; in a shard of some heads over the whole batch's time.

    inputs: tensors [B, T, H, ...], or [B, T, Hkv, ...] with Hkv dividing the most heads H of any, or None; head h reads
    KV head ⌊h·Hkv/H⌋. read returns o [B, T, H, ...], a head of which depends on its own inputs alone.

    Where N does not divide Hkv, KV heads are repeated for all heads; where it does not divide H, heads of zeros fill up
    the last ranks, whose results are dropped.
    """
    shard = ctx.shard
    if shard is None:
        return read(*inputs, cu_seqlens=ctx.cu_seqlens)
    heads = max(x.shape[2] for x in inputs if x is not None)
    swapped = (None if x is None else to_heads(_divisible(x, heads, shard.size), shard) for x in inputs)
    o = read(*swapped, cu_seqlens=shard.whole.cu_seqlens)
    return to_time(o, shard)[:, :, :heads]


def _divisible(x: Tensor, heads: int, ranks: int) -> Tensor:
    """x [B, T, Hkv, ...] with a number of heads that the ranks divide, in the order of its `heads` query heads."""
    if x.shape[2] % ranks == 0 and heads % ranks == 0:
        return x
    x = x.repeat_interleave(heads // x.shape[2], 2)
    return F.pad(x, (*(0, 0) * (x.dim() - 3), 0, -heads % ranks))
