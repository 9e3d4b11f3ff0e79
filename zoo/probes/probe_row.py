"""One row of the table that probes write."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from zoo.probes.events import ProbeEvent


class Row(NamedTuple):
    """One number about one place in the model.

    layer   from 0; the number of layers stands for what comes after the last one; None: of the whole model
    part    "mixer", "channel", "head", or "" for the whole model
    block   registered name of the mixer or channel mixer
    head    from 0, None where there are no heads
    axis    what start and end count: "" (nothing), "position" or "distance" in tokens, "expert", "rank", "step",
            "quantile"
    start   first value of the bucket, None without an axis
    end     one past the last (of a quantile: the quantile)
    measure what the number is
    value   the number
    count   number of observations that it is the mean of
    """

    layer: int | None
    part: str
    block: str
    head: int | None
    axis: str
    start: float | None
    end: float | None
    measure: str
    value: float
    count: int


def row(
    event: ProbeEvent,
    measure: str,
    value: float | Tensor,
    *,
    head: int | None = None,
    axis: str = "",
    start: float | None = None,
    end: float | None = None,
    count: int = 1,
) -> Row:
    """A row at the place of an event; value: a number, or a tensor [] of one."""
    return Row(
        event.layer, event.part, event.block, head, axis, start, end, measure, float(value), int(count)
    )


def by_head(event: ProbeEvent, measure: str, values: Tensor, count: int, **bucket) -> Iterator[Row]:
    """One row per head: values [H]."""
    for head, value in enumerate(values.tolist()):
        yield row(event, measure, value, head=head, count=count, **bucket)


def buckets(length: int, first: int = 16) -> list[tuple[int, int]]:
    """[0, first), [first, 2·first), [2·first, 4·first) … up to `length`: positions and distances, by doubling."""
    edges = [0]
    while edges[-1] < length:
        edges.append(min(length, max(first, 2 * edges[-1])))
    return list(itertools.pairwise(edges))
