"""Initial states of delta rules and mixtures of memories in a shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.context_parallel.fold import fold, handed_through, last_sequence

if TYPE_CHECKING:
    from zoo.context import Context


def delta_state_before(ctx: Context, operation: Callable[..., tuple], inputs: tuple) -> Tensor | None:
    """The states [n, ..., K, V] before the sequences of a shard, as `initial_state`; None where unsharded.

    operation: linear in its state and values, such as `kernels.delta_rule` and `kernels.memory_mixture`; inputs: its
    tensors [B, t, ...], (q, k, v, ...) with v [B, t, ..., V]. Linearity gives transition and increment in one run, over
    values with K zeros behind them, from the state [0 | I]: it ends with [B | A].
    """
    shard = ctx.shard
    if shard is None:
        return None
    part = last_sequence(shard)
    q, k, v, *more = (x[:, part] for x in inputs)
    width = k.shape[-1]
    wide = torch.promote_types(v.dtype, torch.float32)
    start = v.new_zeros(v.shape[0], *v.shape[2:-1], width, v.shape[-1] + width, dtype=wide)
    if handed_through(shard):
        start[..., v.shape[-1] :] = torch.eye(width, dtype=wide, device=v.device)
    _, end = operation(q, k, F.pad(v, (0, width)), *more, initial_state=start, output_final_state=True)
    increment, transition = end.split([v.shape[-1], width], -1)
    return shard.for_each(fold(transition, increment, shard))
