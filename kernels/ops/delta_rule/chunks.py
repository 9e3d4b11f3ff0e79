"""Sequences of any lengths as chunks, ordered so that one step of all of them is one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 32
"""Tokens a chunk at most: more make larger products, fewer more steps."""

GROUP = 2**17
"""Numbers that a tensor of one group of chunks may hold on a CPU, so that they stay in its cache."""


def chunk_length(tokens: int, sequences: int) -> int:
    """Choose the tokens per chunk, up to CHUNK: a power of two that sequences of average length fill by over half."""
    average = tokens / max(sequences, 1)
    return next((c for c in (2, 4, 8, 16) if c >= average), CHUNK)


def most_chunks(tokens: int, sequences: int) -> int:
    """Bound the number of chunks, whatever the sequences' lengths: known without reading them."""
    return tokens // chunk_length(tokens, sequences) + sequences


@dataclass(frozen=True)
class Group:
    """Chunks that are computed together: some steps, and all sequences that are still running in each.

    rows    int64 [M, C], for every slot its row of the flat [tokens·H (+1)] axis; the last, spare row for padding
    filled  bool [M, C], false for padding
    padded  whether there is any
    sizes   how many chunks every step has; those of sequence rank r (and head h) stand at place r·H + h
    first   place of the group's first chunk among all chunks
    """

    rows: Tensor
    filled: Tensor
    padded: bool
    sizes: list[int]
    first: int

    @property
    def places(self) -> slice:
        """The group's chunks among all chunks."""
        return slice(self.first, self.first + self.rows.shape[0])

    def steps(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split x [M, ...] into its steps."""
        return x.split(self.sizes)


@dataclass(frozen=True)
class Chunks:
    """Sequences cut into chunks of C tokens, padded at their ends, in the order of the steps of the recurrence.

    Step s holds the s-th chunk of every sequence that has one. Sequences are ranked by falling length, so that those
    which still run are the first ones at every step.

    order   int64 [N], the sequence of every rank
    start   int64 [n], a chunk's first token; filled: int64 [n], how many of its slots are tokens
    active  how many sequences run at each step
    """

    tokens: int
    heads: int
    length: int
    order: Tensor
    start: Tensor
    filled: Tensor
    active: list[int]

    @staticmethod
    def of(lengths: Tensor, heads: int) -> Chunks:
        """Cut sequences that follow one another into chunks; lengths: int64 [N] on the CPU."""
        tokens = int(lengths.sum())
        length = chunk_length(tokens, lengths.shape[0])
        order = torch.argsort(lengths, descending=True, stable=True)
        first = (lengths.cumsum(0) - lengths)[order]
        lengths = lengths[order]
        chunks = (lengths + length - 1) // length
        steps = torch.arange(int(chunks.max()))
        active = torch.searchsorted(-chunks, -steps)  # chunks falls: how many exceed the step
        step = steps.repeat_interleave(active)
        rank = torch.arange(step.shape[0]) - (active.cumsum(0) - active)[step]
        start = first[rank] + step * length
        filled = (lengths[rank] - step * length).clamp_max(length)
        return Chunks(tokens, heads, length, order, start, filled, active.tolist())

    def groups(self, width: int, device: torch.device) -> Iterator[Group]:
        """Yield all groups in the order of time; a group is sized for tensors of `width` numbers a slot."""
        slots = self.length * self.heads * width
        room = GROUP if device.type == "cpu" else 64 * GROUP
        begin = done = 0
        while begin < len(self.active):
            end, chunks = begin + 1, self.active[begin]
            while end < len(self.active) and (chunks + self.active[end]) * slots <= room:
                chunks += self.active[end]
                end += 1
            yield self._group(done, self.active[begin:end], device)
            begin, done = end, done + chunks

    def _group(self, done: int, active: list[int], device: torch.device) -> Group:
        chunks = slice(done, done + sum(active))
        slot = torch.arange(self.length)
        filled = slot < self.filled[chunks, None]
        token = torch.where(filled, self.start[chunks, None] + slot, self.tokens)
        head = torch.arange(self.heads)[:, None]
        rows = (token[:, None] * self.heads + head).clamp_max(self.tokens * self.heads)
        padded = not bool(filled.all())
        filled = filled[:, None].expand_as(rows)
        sizes = [n * self.heads for n in active]
        return Group(
            rows.flatten(0, 1).to(device), filled.flatten(0, 1).to(device), padded, sizes, done * self.heads
        )
