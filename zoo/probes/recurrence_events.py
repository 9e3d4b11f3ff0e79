"""Probe events of recurrent mixers: their states along the sequence, and their decays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zoo.context import Context


def recurrence_values(
    ctx: Context, run: Callable[..., Tensor], inputs: Sequence[Tensor], log_decay: Tensor
) -> dict[str, Tensor]:
    """The tensors of a "recurrence" event: states after an eighth, a quarter, a half and all tokens; log decays.

    run        called with the inputs [B, t, ...] of t tokens; returns the states [B, M, H, K, V] after them, from zeros
    inputs     the arguments of `run` for all tokens, [B, T, ...] each
    log_decay  [B, T, M, H, K or 1] in nats, NaN where a token leaves a memory alone

    In packed input a state is that of the sequence to which the last token belongs, and `ends` counts the tokens of
    this sequence alone.
    """
    length = inputs[0].shape[1]
    ends = list(dict.fromkeys(max(1, length // part) for part in (8, 4, 2, 1)))
    seen = ctx.positions[0, [end - 1 for end in ends]] + 1
    spans = [slice(end - tokens, end) for end, tokens in zip(ends, seen.tolist(), strict=True)]
    states = [run(*(x[:, span] for x in inputs)) for span in spans]
    return {"states": torch.stack(states, 1), "ends": seen, "log_decay": log_decay}
