"""Packed sequences as a few rectangular batches, each of sequences of about one length.

Shorter sequences end in rows of zeros. Causal results do not depend on the rows after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LONG = 256
"""Sequences of at least this length are never padded: their score entries are n², not one more."""

WASTE = 32_768
"""Score entries (times heads) that padding may add to one batch; about what one more kernel call costs."""


@dataclass(frozen=True)
class Axis:
    """One axis of packed rows and its rectangular batches.

    shapes  (sequences, rows of each) of every batch, in order
    place   int64 [M], the place of each packed row on the axis of all batches; None where that is the packed axis
    """

    shapes: list[tuple[int, int]]
    place: Tensor | None

    def spread(self, x: Tensor) -> list[Tensor]:
        """Every batch [sequences, rows, ...] of x [≥ M, ...]; 0 where no packed row stands. Differentiable."""
        sizes = [sequences * rows for sequences, rows in self.shapes]
        if self.place is None:
            whole = x[: sum(sizes)]
        else:
            whole = x.new_zeros(sum(sizes), *x.shape[1:]).index_copy_(0, self.place, x[: len(self.place)])
        return [part.unflatten(0, shape) for part, shape in zip(whole.split(sizes), self.shapes, strict=True)]

    def collect(self, batches: Sequence[Tensor]) -> Tensor:
        """The packed rows [M, ...] of batches [sequences, rows, ...]; the inverse of `spread`."""
        whole = torch.cat([batch.flatten(0, 1) for batch in batches])
        return whole if self.place is None else whole.index_select(0, self.place)


@dataclass(frozen=True)
class Rectangles:
    """The sequences that share each batch.

    shapes   (sequences, longest length) of every batch; sequences without a token are in none
    lengths  int64 [N] on the CPU
    order    int64 [≤ N] on the CPU, the sequences by falling length, as the batches hold them
    """

    shapes: list[tuple[int, int]]
    lengths: Tensor
    order: Tensor
    device: torch.device

    @staticmethod
    def of(cu_seqlens: Tensor, heads: int, *, may_pad: bool = True) -> Rectangles:
        """Batch the N sequences of cu_seqlens [N+1], those of similar length together; reads cu_seqlens on the host.

        may_pad: whether shorter ones may be padded, where that costs few score entries; each costs `heads`.
        """
        lengths = cu_seqlens.detach().to("cpu", torch.int64).diff()
        order = torch.argsort(lengths, descending=True, stable=True)
        order = order[: int((lengths > 0).sum())]
        shapes = batch_shapes(lengths[order].tolist(), WASTE // heads if may_pad else 0)
        return Rectangles(shapes, lengths, order, cu_seqlens.device)

    def axis(self, rows: Callable[[int], int] | None = None) -> Axis:
        """The axis of tokens or, if `rows` is given, that on which a sequence of n tokens has rows(n) rows."""
        shapes, counts = self.shapes, self.lengths
        if rows is not None:
            shapes = [(sequences, rows(longest)) for sequences, longest in shapes]
            counts = torch.tensor([rows(n) for n in counts.tolist()], dtype=torch.int64)
        sequences, widths = torch.tensor(shapes, dtype=torch.int64).view(-1, 2).unbind(1)
        padded = widths.repeat_interleave(sequences)
        first = torch.zeros_like(counts)
        first[self.order] = padded.cumsum(0) - padded
        place = first.repeat_interleave(counts) + _ramp(counts)
        same = len(place) == int(padded.sum()) and torch.equal(place, torch.arange(len(place)))
        return Axis(shapes, None if same else place.to(self.device))


def batch_shapes(lengths: list[int], waste: int) -> list[tuple[int, int]]:
    """Cut falling lengths into batches (sequences, longest), each with at most `waste` padded entries."""
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


def _ramp(counts: Tensor) -> Tensor:
    """0 … n−1 for every n in counts, one after another."""
    starts = counts.cumsum(0) - counts
    return torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)
