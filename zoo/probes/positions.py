"""One number per query, [B, H, T], as rows: their mean over the queries, and by the query's position."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.probe_row import Row, buckets, by_head


def mean_over_queries(
    event: ProbeEvent, measure: str, values: Tensor, since: int = 0, **bucket
) -> Iterator[Row]:
    """One row per head: the mean of values [B, H, T] over the queries t ≥ since; none if there is no such query."""
    kept = values[..., since:]
    if kept.shape[-1]:
        yield from by_head(event, measure, kept.mean((0, 2)), kept.shape[0] * kept.shape[2], **bucket)


def by_position(event: ProbeEvent, measure: str, values: Tensor, since: int = 0) -> Iterator[Row]:
    """Rows of the mean of values [B, H, T] in every bucket of positions, queries t ≥ since only."""
    for start, end in buckets(values.shape[-1]):
        place = {"axis": "position", "start": start, "end": end}
        yield from mean_over_queries(event, measure, values[..., :end], max(start, since), **place)
