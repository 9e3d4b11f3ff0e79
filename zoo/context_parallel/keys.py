"""Operations whose queries are a rank's own and whose keys are all that came before: attention, selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.context_parallel.gather import gather
from zoo.context_parallel.sums import total

if TYPE_CHECKING:
    from zoo.context import Context

Tensors = tuple[Tensor | None, ...]
Losses = dict[str, Tensor]


def by_keys(ctx: Context, read: Callable[..., Tensor], queries: Tensors, keys: Tensors) -> Tensor:
    """What queries read from keys: `read(*queries, *keys, cu_seqlens=...)`; in a shard from keys gathered.

    queries, keys: tensors [B, T, ...], None among the queries is passed on; read returns o [B, Tq, ...], and has to
    align a shorter q with the end of k where cu_seqlens is None. Keys are gathered once; then `read` is called for each
    of the shard's pieces, at most three, so that no operation has to know a packed q shorter than its k.
    """
    return by_keys_with_losses(ctx, lambda *x, **o: (read(*x, **o), {}), queries, keys)[0]


def by_keys_with_losses(
    ctx: Context, read: Callable[..., tuple[Tensor, Losses]], queries: Tensors, keys: Tensors
) -> tuple[Tensor, Losses]:
    """`by_keys` of a `read` that also returns losses, means over sequences of means over their queries.

    In a shard they are those of the whole batch: Σ over all ranks' pieces of (the piece's share)·(its loss).
    """
    shard = ctx.shard
    if shard is None:
        return read(*queries, *keys, cu_seqlens=ctx.cu_seqlens)
    gathered = [gather(x, shard) for x in keys]
    outputs, losses = [], {}
    for piece in shard.pieces:
        own = (None if x is None else x[:, piece.queries] for x in queries)
        o, found = read(*own, *(x[:, piece.keys] for x in gathered), cu_seqlens=piece.cu_seqlens)
        outputs.append(o)
        for name, loss in found.items():
            losses[name] = losses.get(name, 0) + piece.share * loss
    return torch.cat(outputs, 1), {name: total(loss, shard) for name, loss in losses.items()}
