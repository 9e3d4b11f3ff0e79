"""The exchange `swap`: all time of some heads in place of some time of all heads."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.context_parallel.shard import Shard

TIME, HEADS = 1, 2
"""Axes of [B, T, H, ...]."""


def to_heads(x: Tensor, shard: Shard) -> Tensor:
    """Swap time for heads.

        forward     y^(r) = [x^(0)_{heads of r}, …, x^(N−1)_{heads of r}] along time      all-to-all
        backward    the same with time and heads exchanged: `to_time`

    x [B, t, H, ...], N divides H -> [B, N·t, H/N, ...]: rank r gets heads [r·H/N, (r+1)·H/N). Any dtype. Bytes that a
    rank receives: (N − 1)/N·x in either direction.
    """
    return _Swap.apply(x, HEADS, TIME, shard)


def to_time(x: Tensor, shard: Shard) -> Tensor:
    """Undo `to_heads`: [B, N·t, H/N, ...] -> [B, t, H, ...]."""
    return _Swap.apply(x, TIME, HEADS, shard)


def _exchange(x: Tensor, given: int, taken: int, shard: Shard) -> Tensor:
    """Cut x into N parts along axis `given`, send part r to rank r, join what arrives along axis `taken`."""
    parts = torch.stack(x.chunk(shard.size, given))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=shard.group)
    return torch.cat(arrived.unbind(), taken)


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, given: int, taken: int, shard: Shard) -> Tensor:
        ctx.back = taken, given, shard
        return _exchange(x, given, taken, shard)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _exchange(grad, *ctx.back), None, None, None
