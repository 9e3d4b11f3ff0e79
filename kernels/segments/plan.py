"""How segments of unequal length become a few rectangular batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LONG = 256
"""Segments of at least this length are never padded: their score entries are n², not one more."""

WASTE = 32_768
"""Score entries (times heads) that padding may add to one batch; about what one more kernel call costs."""


@dataclass(frozen=True)
class Plan:
    """Batches of segments.

    shapes   (segments, padded length) of every batch, in order
    source   int64 [P], for every row of the padded layout the token that it copies; None where the padded
             layout is the token axis itself
    restore  int64 [M], for every token its row of the padded layout; None likewise
    """

    shapes: list[tuple[int, int]]
    source: Tensor | None
    restore: Tensor | None


def make_plan(cu_seqlens: Tensor, heads: int, *, may_pad: bool) -> Plan:
    """Batch the segments [cu[i], cu[i+1]) by similar length; padding goes to the end of a segment.

    A padded row copies the last token of its segment, so that it is finite, and nothing before it sees it.
    """
    device = cu_seqlens.device
    cu = cu_seqlens.detach().to("cpu", torch.int64)
    lengths = cu.diff()
    order = torch.argsort(lengths, descending=True, stable=True)
    order = order[: int((lengths > 0).sum())]
    shapes = batch_shapes(lengths[order].tolist(), WASTE // heads if may_pad else 0)
    segments, widths = torch.tensor(shapes, dtype=torch.int64).view(-1, 2).unbind(1)
    padded = widths.repeat_interleave(segments)
    source = _source(cu[:-1][order], lengths[order], padded)
    if torch.equal(source, torch.arange(int(cu[-1]))):
        return Plan(shapes, None, None)
    restore = _restore(cu, lengths, order, padded)
    return Plan(shapes, source.to(device), restore.to(device))


def batch_shapes(lengths: list[int], waste: int) -> list[tuple[int, int]]:
    """Cut falling lengths into batches (segments, longest), each with at most `waste` padded entries."""
    shapes: list[tuple[int, int]] = []
    left = 0
    for length in lengths:
        longest = shapes[-1][1] if shapes else 0
        extra = longest**2 - length**2
        if shapes and (extra == 0 or (longest < LONG and extra <= left)):
            shapes[-1] = (shapes[-1][0] + 1, longest)
            left -= extra
        else:
            shapes.append((1, length))
            left = waste
    return shapes


def _source(starts: Tensor, lengths: Tensor, padded: Tensor) -> Tensor:
    row = _ramp(padded)
    last = (lengths - 1).repeat_interleave(padded)
    return starts.repeat_interleave(padded) + torch.minimum(row, last)


def _restore(cu: Tensor, lengths: Tensor, order: Tensor, padded: Tensor) -> Tensor:
    first_row = torch.zeros_like(lengths)
    first_row[order] = padded.cumsum(0) - padded
    return first_row.repeat_interleave(lengths) + _ramp(lengths)


def _ramp(lengths: Tensor) -> Tensor:
    """0 … n−1 for every n in lengths, one after another."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)
