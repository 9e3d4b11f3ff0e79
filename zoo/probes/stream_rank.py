"""The rank of factorised streams that keeps a given share of their energy."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.probes.probe_row import Row


def smallest_rank(rows: Iterable[Row], energy: float) -> tuple[int, int] | None:
    """(r, n): the smallest r whose r leading directions hold `energy` between all layers, and the streams there are.

    rows: a probe's, such as those of `zoo.probes.probe_model`; energy: a share of Σ‖x‖², above 0 and at most 1. None
    where there is one stream, or one layer, or no row of stream_energy.

    The directions are each place's own, a bound from above: U of factorised streams is one basis for all layers, whose
    first column is the mean stream.
    """
    between = [
        r for r in rows if r.measure == "stream_energy" and r.part == "mixer" and r.layer
    ]  # a layer's input; the first one's is the embedding
    worst: dict[int, float] = {}
    for row in between:
        worst[int(row.end)] = min(row.value, worst.get(int(row.end), 1.0))
    if len(worst) < 2:
        return None
    n = max(worst)
    return next((rank for rank in sorted(worst) if worst[rank] >= energy), n), n
