"""Numbers about held-out windows: what `zoo.probes` measures, and the loss by position."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from experiments.evaluate import token_losses
from zoo.model import LanguageModel
from zoo.probes import Row, measure
from zoo.probes.measure import evaluating
from zoo.probes.rows import buckets


def measured(model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int) -> list[Row]:
    """Rows of all measures over windows [N, T], some at a time, averaged."""
    device = model.embedding.weight.device
    return averaged(
        row
        for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True)
        for row in measure(model, x.to(device), y.to(device))
    )


def averaged(rows: Iterable[Row]) -> list[Row]:
    """Rows of one place, bucket and measure become one: Σ count·value / Σ count. Means of nothing are left out."""
    sums: dict[tuple, tuple[float, int]] = {}
    for row in rows:
        if row.count:
            total, count = sums.get(row[:-2], (0.0, 0))
            sums[row[:-2]] = total + row.count * row.value, count + row.count
    return [Row(*place, total / count, count) for place, (total, count) in sums.items()]


def loss_by_position(
    model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int, precision: str
) -> list[Row]:
    """Mean −ln p (nats/token) of the tokens at the positions of each bucket, over windows [N, T].

    T may be above the trained length, of which buckets beyond it are multiples.
    """
    device, length = model.embedding.weight.device, tokens.shape[1]
    total = torch.zeros(length, dtype=torch.float64, device=device)
    with torch.no_grad(), evaluating(model):
        for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                total += token_losses(model, x.to(device), y.to(device)).double().sum(0)
    windows, sums = len(tokens), total.tolist()
    return [
        Row(
            None,
            "",
            "",
            None,
            "position",
            start,
            end,
            "loss",
            sum(sums[start:end]) / (windows * (end - start)),
            windows * (end - start),
        )
        for start, end in position_buckets(model.seq_len, length)
    ]


def position_buckets(trained: int, length: int) -> list[tuple[int, int]]:
    """`buckets` of the trained length, then [1, 2), [2, 4), [4, 8) … times it, up to `length`."""
    if length <= trained:
        return buckets(length)
    edges = [trained]
    while edges[-1] < length:
        edges.append(min(length, 2 * edges[-1]))
    return [*buckets(trained), *itertools.pairwise(edges)]
