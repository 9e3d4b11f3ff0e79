"""What the fused forms read and write, and tensors by KV head: heads that share one are rows of one product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Indexer(NamedTuple):
    """q [B, T, HI, DI], k [B, T, DI], w [B, T, HI], bias [HI], tau []."""

    q: Tensor
    k: Tensor
    w: Tensor
    bias: Tensor
    tau: Tensor


class Output(NamedTuple):
    """o [B, T, H, V]; log-sum-exps by KV head [B·Hkv, T·G, 1]; the selection's bits [B, T, ⌈T/8⌉]."""

    o: Tensor
    lse: Tensor
    bits: Tensor


def by_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """Queries [B, T, H, D] -> [B·Hkv, T·G, D], the G heads of a KV head next to each other."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).reshape(len(x) * kv_heads, -1, x.shape[-1])


def by_query(x: Tensor, shape: torch.Size, kv_heads: int) -> Tensor:
    """The inverse of `by_kv_head`: [B·Hkv, T·G, D] -> [B, T, H, D], shape [B, T, H, …]."""
    batch, time, heads = shape[:3]
    return x.view(batch, kv_heads, time, heads // kv_heads, -1).transpose(1, 2).flatten(2, 3)


def keys_by_head(x: Tensor) -> Tensor:
    """Keys or values [B, T, Hkv, D] -> [B·Hkv, T, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def keys_by_position(x: Tensor, heads: int) -> Tensor:
    """The inverse of `keys_by_head`: [B·Hkv, T, D] -> [B, T, Hkv, D]."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2)


def with_column(x: Tensor, column: Tensor | float) -> Tensor:
    """x [..., D] with one more column [..., 1], so that a product adds a term without a pass of its own."""
    if isinstance(column, float):
        column = x.new_full((*x.shape[:-1], 1), column)
    return torch.cat([x, column.to(x.dtype)], -1)
