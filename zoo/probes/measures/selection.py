"""Tokens that sparse attention selects: how many, how far back, and their share of full attention's weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, by_position, mean_over_queries, register_measure, row


@register_measure
class Selection(Measure):
    """Size and weight of the sets S_t in `selected` [B, H, T, T], by head:

        selected_keys         |S_t|, a mean over queries       also by position
        selected_distance     t − s, a mean over all selected pairs

    how alike neighbours choose:

        selected_overlap      |S_t ∩ S_{t−1}| / |S_t ∪ S_{t−1}|, a mean over t ≥ 1       also by position
        selected_union_R      |∪_t S_t| / mean_t |S_t| of the R queries of a tile, a mean over full tiles, R = 2 and 16:
                              1 where all choose alike, R where no two choose a common token

    and, where `dense` is recorded, with p_ts its mean over heads, over queries t ≥ T/2 and by position:

        selected_mass         Σ_{s ∈ S_t} p_ts
        selected_mass_random  |S_t|/(t + 1): the mean for as many tokens s ≤ t drawn at random
    """

    name = "selection"
    kinds = ("selection",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one mixer's selected tokens."""
        selected = event.values["selected"]
        keys = selected.sum(-1).double()
        yield from mean_over_queries(event, "selected_keys", keys)
        yield from by_position(event, "selected_keys", keys)
        yield from _distance(event, selected)
        yield from _overlap(event, selected, keys)
        if "dense" in event.values:
            yield from _mass(event, selected, keys, event.values["dense"])


def _distance(event: ProbeEvent, selected: Tensor) -> Iterator[Row]:
    t = torch.arange(selected.shape[-1], device=selected.device)
    pairs = selected.sum((0, 2, 3))
    total = (selected * (t[:, None] - t)).sum((0, 2, 3))
    for head, (sum_, count) in enumerate(zip(total.tolist(), pairs.tolist(), strict=True)):
        yield row(event, "selected_distance", sum_ / count, head=head, count=count)


TILES = (2, 16)


def _overlap(event: ProbeEvent, selected: Tensor, keys: Tensor) -> Iterator[Row]:
    both = (selected[:, :, 1:] & selected[:, :, :-1]).sum(-1)
    either = keys[..., 1:] + keys[..., :-1] - both
    # The first token has no neighbour before it, and its place is left out.
    shares = torch.cat([torch.ones_like(keys[..., :1]), both / either], -1)
    yield from mean_over_queries(event, "selected_overlap", shares, since=1)
    yield from by_position(event, "selected_overlap", shares, since=1)
    for size in TILES:
        tiles = keys.shape[-1] // size
        if tiles:
            union = selected[:, :, : tiles * size].unflatten(2, (tiles, size)).any(3).sum(-1)
            mean = keys[..., : tiles * size].unflatten(2, (tiles, size)).mean(3)
            yield from mean_over_queries(event, f"selected_union_{size}", union / mean)


def _mass(event: ProbeEvent, selected: Tensor, keys: Tensor, dense: Tensor) -> Iterator[Row]:
    time = selected.shape[-1]
    visible = torch.arange(1, time + 1, device=keys.device)
    masses = {
        "selected_mass": (selected * dense.mean(1, keepdim=True)).sum(-1),
        "selected_mass_random": keys / visible,
    }
    for measure, values in masses.items():
        yield from mean_over_queries(event, measure, values, since=(time + 1) // 2)
        yield from by_position(event, measure, values)
