"""Sums over ranks: of losses and their parts, which every rank then computes with alike, and of gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.context_parallel.shard import Shard


def total(x: Tensor, shard: Shard) -> Tensor:
    """Return the sum of x [...] over the ranks, in x's shape.

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


@torch.no_grad()
def add_gradients(parameters: Iterable[Tensor], shard: Shard) -> None:
    """Add the parameters' gradients, of any shapes [...], up over ranks, in place, in one all-reduce for each dtype.

    Every rank's backward holds its own tokens' part of each gradient. A parameter without a gradient on any rank keeps
    none: an optimiser would else decay it.
    """
    parameters = [p for p in parameters if p.requires_grad]
    if not parameters:
        return
    found = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    found = found.to(parameters[0].device)
    dist.all_reduce(found, group=shard.group)
    parameters = [p for p, ranks in zip(parameters, found.tolist(), strict=True) if ranks]
    for dtype in {p.dtype: None for p in parameters}:
        alike = [p for p in parameters if p.dtype == dtype]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=shard.group)
        for p, part in zip(alike, flat.split([p.numel() for p in alike]), strict=True):
            p.grad = part.view_as(p)
