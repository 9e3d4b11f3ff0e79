"""Norm and effective rank of recurrent states, and how fast they forget."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, by_head, register_measure, row

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@register_measure
class States(Measure):
    """Norm and effective rank of the states S [K, V] of a head, means over the batch.

    state_norm, state_rank    ‖S‖ (Frobenius) and effective rank after so many tokens, axis position, over all memories
    memory_norm, memory_rank  the same after the last token of every memory, axis expert, where there are several
    """

    name = "states"
    kinds = ("recurrence",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one mixer's states."""
        states = event.values["states"].detach().double()
        of_state = {"norm": states.norm(dim=(-2, -1)), "rank": effective_rank(states)}  # [B, P, M, H]
        for name, values in of_state.items():
            for end, at in zip(event.values["ends"].tolist(), values.unbind(1), strict=True):
                where = {"axis": "position", "start": 0, "end": end}
                yield from by_head(event, f"state_{name}", at.mean((0, 1)), at[..., 0].numel(), **where)
            if values.shape[2] > 1:
                for m, memory in enumerate(values[:, -1].unbind(1)):
                    where = {"axis": "expert", "start": m, "end": m + 1}
                    yield from by_head(event, f"memory_{name}", memory.mean(0), len(memory), **where)


@register_measure
class Decay(Measure):
    """Decay rates of a head, over tokens and channels (and memories that a token writes to).

    decay            quantiles of exp(g), the factor by which a token multiplies the state
    decay_half_life  ln 2 / −g in tokens at the same quantiles of g; infinite where nothing is forgotten
    """

    name = "decay"
    kinds = ("recurrence",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one mixer's log decays."""
        for head, g in enumerate(event.values["log_decay"].detach().double().movedim(3, 0).flatten(1)):
            g = g[~g.isnan()].sort().values
            for q in QUANTILES if len(g) else ():
                where = {"head": head, "axis": "quantile", "start": 0, "end": q, "count": len(g)}
                yield row(event, "decay", quantile(g.exp(), q), **where)
                yield row(event, "decay_half_life", -math.log(2) / quantile(g, q), **where)


def quantile(ascending: Tensor, q: float) -> Tensor:
    """The q-quantile of sorted numbers [n], between two of them linearly (torch.quantile has a limit on n)."""
    place = q * (len(ascending) - 1)
    below, above = ascending[math.floor(place)], ascending[math.ceil(place)]
    return torch.lerp(below, above, place % 1)


def effective_rank(x: Tensor) -> Tensor:
    """exp(−Σ p·ln p) with p = s/Σs of the singular values s of x [..., K, V]: from 1 to min(K, V), 0 for zeros.

    Source: Roy and Vetterli 2007, The effective rank.
    """
    s = torch.linalg.svdvals(x)
    total = s.sum(-1, keepdim=True)
    p = s / total.masked_fill(total == 0, 1)
    return torch.special.entr(p).sum(-1).exp().masked_fill(total[..., 0] == 0, 0)
