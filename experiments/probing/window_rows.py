"""Rows of all measures over held-out windows, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from zoo.model import LanguageModel
from zoo.probes import Row, correct_averages, probe_model


def probe_windows(model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int) -> list[Row]:
    """Rows of all measures over windows [N, T], batch_size at a time: averages over batches, corrected where needed.

    A measure that is no average over tokens (norms of gradients, principal directions) is taken batch by batch, and
    averaged over batches.
    """
    device = model.embedding.weight.device
    return correct_averages(
        average_rows(
            row
            for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True)
            for row in probe_model(model, x.to(device), y.to(device))
        )
    )


def average_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for every place, bucket and measure: Σ count·value / Σ count. Averages of nothing are left out."""
    sums: dict[tuple, tuple[float, int]] = {}
    for row in rows:
        if row.count:
            total, count = sums.get(row[:-2], (0.0, 0))
            sums[row[:-2]] = total + row.count * row.value, count + row.count
    return [Row(*place, total / count, count) for place, (total, count) in sums.items()]
