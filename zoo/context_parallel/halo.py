"""The exchange `halo`: the last inputs of the rank before, which a causal convolution reads."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.context_parallel.shard import Shard


def halo(last: Tensor, shard: Shard) -> Tensor:
    """Pass the last tokens of every shard to the next rank.

        forward     y^(r) = last^(r−1), zeros for rank 0         send to r + 1
        backward    l̄ast^(r) = ȳ^(r+1), zeros for the last       send to r − 1

    last [B, k, D] -> [B, k, D]. Bytes that a rank receives: those of `last`.
    """
    return _Halo.apply(last, shard)


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, last: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return _shift(last, shard, 1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _shift(grad, ctx.shard, -1), None


def _shift(x: Tensor, shard: Shard, by: int) -> Tensor:
    """Send x to rank r + by and return what rank r − by sent; zeros where there is no such rank."""
    sent, arrived, transfers = x.contiguous(), torch.zeros_like(x, memory_format=torch.contiguous_format), []
    to, source = shard.rank + by, shard.rank - by
    if 0 <= to < shard.size:
        transfers.append(dist.P2POp(dist.isend, sent, group=shard.group, group_peer=to))
    if 0 <= source < shard.size:
        transfers.append(dist.P2POp(dist.irecv, arrived, group=shard.group, group_peer=source))
    for transfer in dist.batch_isend_irecv(transfers) if transfers else ():
        transfer.wait()
    return arrived
