"""Sums over ranks of what every rank then computes alike: losses and their parts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.context_parallel.shard import Shard


def total(x: Tensor, shard: Shard) -> Tensor:
    """Add up over ranks.

        forward     y = Σ_r x^(r)       all-reduce
        backward    x̄^(r) = ȳ           nothing to exchange: every rank computes the same loss from y, and so has ȳ

    x of any shape and dtype, the same on all ranks. What comes after may hold no parameters: every rank would count
    their gradients once.
    """
    return _Total.apply(x, shard)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, shard: Shard) -> Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=shard.group)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None
