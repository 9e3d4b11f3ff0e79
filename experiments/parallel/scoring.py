"""Computing on tokens that lie on several processes, and having the numbers of all of them on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from zoo.context import Context

Read = Callable[[Tensor, Tensor, Context], Tensor]


@torch.no_grad()
def by_shards(read: Read, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor | None, shards: Any) -> Tensor:
    """`read(tokens, targets, ctx)`, numbers [B, T] from causal models, where every process computes its shard's.

    tokens, targets int64 [B, T] and cu_seqlens (as in `Context.of`): the whole batch, on every process of the group
    `shards`. Where it does not cut into equal shards, tokens are added at the end, as a sequence of their own where
    there are boundaries.
    """
    size, length = dist.get_world_size(shards), tokens.shape[1]
    more = -length % size
    if more and cu_seqlens is not None:
        cu_seqlens = torch.cat([cu_seqlens, cu_seqlens[-1:] + more])
    tokens, targets = (F.pad(x, (0, more)) for x in (tokens, targets))
    ctx = Context.of(tokens, cu_seqlens).cut(shards)
    own = read(ctx.shard.own(tokens), ctx.shard.own(targets), ctx).contiguous()
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own, group=shards)
    return torch.cat(parts, 1)[:, :length]
