"""Mixers that know nothing of shards: their input is gathered, and every rank computes the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from zoo.context_parallel.gather import gather
from zoo.context_parallel.sums import total

if TYPE_CHECKING:
    from zoo.context import Context


def whole(mixer: Callable, x: Tensor, ctx: Context) -> tuple[Tensor, dict[str, Tensor]]:
    """The own part of what a mixer makes of the whole batch: x [B, t, D] -> (y [B, t, D], auxiliary losses).

    Right for every mixer, and no faster than one device: N times the work, and the memory of whole sequences in this
    mixer. Losses are computed N times, too, so that each rank passes back an N-th of their gradient.
    """
    shard = ctx.shard
    y, aux = mixer(gather(x, shard, whole=True), shard.whole)
    return shard.own(y), {name: total(loss / shard.size, shard) for name, loss in aux.items()}
