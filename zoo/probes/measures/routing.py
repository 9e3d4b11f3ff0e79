"""Routing of tokens: loads, imbalance and certainty of routers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, by_head, register_measure


@register_measure
class Routing(Measure):
    """Balance and certainty of a router to experts, memories or timelines, by head, in nats:

    load              l_e, the share of the k·B·T assignments that e got, axis expert; Σ_e l_e = 1
    imbalance         max_e l_e / mean_e l_e: 1 when balanced, E when one of E gets all
    load_entropy      H(l), at most ln E
    routing_entropy   the mean over tokens of H(p_t)
    top_probability   the mean over tokens of p_t of the first choice
    """

    name = "routing"
    kinds = ("routing",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one router."""
        p, choices = event.values["probabilities"].detach().double(), event.values["choices"]
        experts, tokens, assignments = p.shape[-1], p[:, :, 0, 0].numel(), choices[:, :, 0].numel()
        load = F.one_hot(choices, experts).sum((0, 1, 3)).double() / assignments  # [H, E]
        for e, share in enumerate(load.unbind(-1)):
            yield from by_head(event, "load", share, assignments, axis="expert", start=e, end=e + 1)
        yield from by_head(event, "imbalance", load.amax(-1) * experts, assignments)
        yield from by_head(event, "load_entropy", torch.special.entr(load).sum(-1), assignments)
        entropy = torch.special.entr(p).sum(-1).mean((0, 1))
        yield from by_head(event, "routing_entropy", entropy, tokens)
        first = p.gather(-1, choices[..., :1]).mean((0, 1, 3))
        yield from by_head(event, "top_probability", first, tokens)

    @classmethod
    def correct_averages(cls, rows: list[Row]) -> list[Row]:
        """Rows with imbalance and entropy computed from the averaged loads: neither is a mean over batches."""
        loads: dict[tuple, list[float]] = defaultdict(list)
        for row in rows:
            if row.measure == "load":
                loads[_place(row)].append(row.value)
        return [
            row._replace(value=_OF_LOADS[row.measure](loads[_place(row)]))
            if row.measure in _OF_LOADS
            else row
            for row in rows
        ]


def _place(row: Row) -> tuple:
    return row.layer, row.part, row.block, row.head


_OF_LOADS = {
    "imbalance": lambda loads: max(loads) * len(loads),
    "load_entropy": lambda loads: -sum(load * math.log(load) for load in loads if load),
}
