"""A training step's loss and gradients over all ranks of a shard's group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from zoo.context_parallel.shard import Shard
from zoo.context_parallel.sums import total

if TYPE_CHECKING:
    from zoo.context import Context


def cross_entropy(logits: Tensor, targets: Tensor, ctx: Context, ignore_index: int = -100) -> Tensor:
    """The mean cross-entropy [] in nats over all ranks' targets, those equal to ignore_index left out.

    logits [B, t, V], targets int64 [B, t]: the rank's own. Unsharded it is `torch.nn.functional.cross_entropy`.
    """
    logits, targets = logits.flatten(0, 1), targets.flatten()
    if ctx.shard is None:
        return F.cross_entropy(logits, targets, ignore_index=ignore_index)
    losses = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="sum")
    count = (targets != ignore_index).sum()
    return total(losses, ctx.shard) / total(count, ctx.shard)


@torch.no_grad()
def add_gradients(parameters: Iterable[Tensor], shard: Shard) -> None:
    """Add the parameters' gradients up over ranks, in place, in one all-reduce for each dtype.

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
