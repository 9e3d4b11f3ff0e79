"""Openness of gates."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, by_head, register_measure

LOW = 0.1


@register_measure
class Gates(Measure):
    """Mean of every gate [B, T, H, ...] by head, `<gate>_gate_mean`, and `<gate>_gate_low`, the
    share of those below 0.1. The heads of a gate on values are KV heads."""

    name = "gates"
    kinds = ("gates",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of one mixer's gates."""
        for name, gate in event.values.items():
            numbers = gate.float().movedim(2, 0).flatten(1)
            count = numbers.shape[1]
            yield from by_head(event, f"{name}_gate_mean", numbers.mean(-1), count)
            yield from by_head(event, f"{name}_gate_low", (numbers < LOW).float().mean(-1), count)
