"""The exchange `gather`: every rank gets the keys of all tokens up to its own last one."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.context_parallel.shard import Shard


def gather(x: Tensor, shard: Shard, *, whole: bool = False) -> Tensor:
    """Concatenate shards along time.

        forward     y^(r) = [x^(0), …, x^(r)], or with `whole` [x^(0), …, x^(N−1)]       all-gather
        backward    x̄^(s) = Σ_r ȳ^(r)_s over the ranks r that read shard s               reduce-scatter

    x [B, t, ...], t tokens of this rank -> [B, (r+1)·t, ...], or [B, N·t, ...]; any dtype, gradients of which are added
    in that dtype. Bytes that a rank receives: (N − 1)·x in either direction.

    All ranks have to reach the backward, or those that do would wait: a rank may not drop y.
    """
    return _Gather.apply(x, shard, shard.size if whole else shard.rank + 1)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, shard: Shard, kept: int) -> Tensor:
        ctx.shard, ctx.length = shard, x.shape[1]
        x = x.contiguous()
        if not x.numel():  # MLA's rotary keys where it has none: nothing to send
            return x.new_empty(x.shape[0], kept * x.shape[1], *x.shape[2:])
        parts = [torch.empty_like(x) for _ in range(shard.size)]
        dist.all_gather(parts, x, group=shard.group)
        return torch.cat(parts[:kept], 1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        shard = ctx.shard
        parts = [part.contiguous() for part in grad.split(ctx.length, 1)]
        parts += [torch.zeros_like(parts[0]) for _ in range(shard.size - len(parts))]
        out = torch.empty_like(parts[0])
        if out.numel():
            dist.reduce_scatter(out, parts, group=shard.group)
        return out, None, None
