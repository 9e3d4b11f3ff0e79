"""The loss by position, out to contexts longer than the trained ones."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from experiments.scoring import token_losses
from zoo.model import LanguageModel
from zoo.probes import Row, evaluation_mode
from zoo.probes.rows import buckets


def loss_by_position(
    model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int, precision: str
) -> list[Row]:
    """Mean −ln p (nats/token) of the same tokens at the positions of each bucket: what longer contexts change alone.

    tokens, targets [N, T] are the longest contexts, batch_size of them at once. The last tokens are scored, as many
    as the widest bucket holds; for a bucket [start, end) windows of `end` tokens end where their last end − start
    tokens tile that stretch. They tile it whole where T is a power of two times the trained length; otherwise a rest
    is left out. T may be above the trained length, of which buckets beyond it are multiples.
    """
    length = tokens.shape[1]
    found = position_buckets(model.seq_len, length)
    stretch = length - max(end - start for start, end in found)
    rows = []
    for start, end in found:
        scored, before = end - start, max(stretch - start, 0)
        x, y = (part[:, before:].unfold(1, end, scored).flatten(0, 1) for part in (tokens, targets))
        total = _summed(model, x, y, scored, max(1, batch_size * length // end), precision)
        count = len(x) * scored
        rows.append(
            Row(None, "", "", None, "position", float(start), float(end), "loss", total / count, count)
        )
    return rows


def _summed(
    model: LanguageModel, tokens: Tensor, targets: Tensor, last: int, batch_size: int, precision: str
) -> float:
    """Σ −ln p over the `last` tokens of every window."""
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    with torch.no_grad(), evaluation_mode(model):
        for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                losses = token_losses(model, x.to(device), y.to(device))
            total += losses[:, -last:].double().sum()
    return float(total)


def position_buckets(trained: int, length: int) -> list[tuple[int, int]]:
    """`buckets` of the trained length, then [1, 2), [2, 4), [4, 8) … times it, up to `length`."""
    if length <= trained:
        return buckets(length)
    edges = [trained]
    while edges[-1] < length:
        edges.append(min(length, 2 * edges[-1]))
    return [*buckets(trained), *itertools.pairwise(edges)]
