"""Attention weights: mass on first tokens, entropy, mass by distance."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import (
    Measure,
    Row,
    buckets,
    by_head,
    by_position,
    mean_over_queries,
    register_measure,
)

RANKS = (1, 8)


@register_measure
class Attention(Measure):
    """Summaries of weights w [B, H, T, T], by head, as means over sequences and queries t:

    first_token_mass     w_t0 over t ≥ 1                  also by position
    first_token_uniform  1/(t + 1), likewise: the first token's weight in uniform attention
    top_mass             the sum of the k largest w_ts, k = 1 and 8 (axis "rank", start 0, end k)
    attention_entropy    −Σ_s w_ts·ln w_ts in nats        also by position
    distance_mass        Σ_s w_ts over s with t − s in [start, end); the shares sum to 1 (axis "distance")
    """

    name = "attention"
    kinds = ("attention",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one mixer's attention weights."""
        w = event.values["weights"]
        yield from _first_token(event, w)
        best = w.topk(min(max(RANKS), w.shape[-1]), -1).values
        for k in RANKS:
            yield from mean_over_queries(
                event, "top_mass", best[..., :k].sum(-1), axis="rank", start=0, end=k
            )
        entropy = torch.special.entr(w).sum(-1)
        yield from mean_over_queries(event, "attention_entropy", entropy)
        yield from by_position(event, "attention_entropy", entropy)
        yield from _distances(event, w)


def _first_token(event: ProbeEvent, w: Tensor) -> Iterator[Row]:
    """Rows of the first token's mass over the queries t ≥ 1: the first query has no other token to attend to."""
    uniform = 1 / torch.arange(1, w.shape[-1] + 1, device=w.device, dtype=w.dtype)
    masses = {"first_token_mass": w[..., 0], "first_token_uniform": uniform.expand(w.shape[:3])}
    for measure, values in masses.items():
        yield from mean_over_queries(event, measure, values, since=1)
        yield from by_position(event, measure, values, since=1)


def _distances(event: ProbeEvent, w: Tensor) -> Iterator[Row]:
    batch, heads, time, _ = w.shape
    t = torch.arange(time, device=w.device)
    distance = (t[:, None] - t).clamp_min(0)
    total = w.sum(0).flatten(1)
    profile = torch.zeros(heads, time, device=w.device, dtype=w.dtype)
    profile.index_add_(1, distance.flatten(), total)
    share = profile / (batch * time)
    for start, end in buckets(time, first=1):
        mass = share[:, start:end].sum(-1)
        place = {"axis": "distance", "start": start, "end": end}
        yield from by_head(event, "distance_mass", mass, batch * time, **place)
