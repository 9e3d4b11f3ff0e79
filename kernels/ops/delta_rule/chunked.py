"""The gated delta rule a chunk at a time: sequences as chunks, and the WY form forward (chunked_backward.py: backward).

Within a chunk that starts from state S₀, let G_i be the sum of its gates up to token i, let products be under the decay
between their tokens, and let e_i = v_i − (Diag(exp g_i)·S_{i−1})ᵀk_i be the error that token i corrects:

    S_i = exp(G_i)⊙S₀ + Σ_{j≤i} exp(G_i − G_j)⊙k_j · β_j·e_jᵀ
    e_i = v_i − (exp(G_i)⊙k_i)ᵀS₀ − Σ_{j<i} A_ij·β_j·e_j                 A_ij = k_i·k_j, decayed
    o_i = (exp(G_i)⊙q_i)ᵀS₀ + Σ_{j≤i} P_ij·β_j·e_j                       P_ij = q_i·k_j, decayed

so that E = N⁻¹V − N⁻¹K̄·S₀ with N = I + A·Diag(β), K̄ = exp(G)⊙K. Everything but two products a chunk is computed for
many chunks at once; the two carry the state from chunk to chunk.

Without the delta term (`delta=False`, gated linear attention) nothing is read before it is written: e_i = v_i, N = I.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.delta_rule.decay import ChannelDecay, SharedDecay

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

    rows    int64 [M, C], for every slot the row of the flat [tokens·H] axis that it reads; padding reads the last one
            of its own sequence, so that a NaN reaches no other
    out     int64 [M, C], the row of [tokens·H + 1] that it writes: `rows`, and the last, spare one for padding
    filled  bool [M, C], false for padding
    padded  whether there is any
    sizes   how many chunks every step has; those of sequence rank r (and head h) stand at place r·H + h
    first   place of the group's first chunk among all chunks
    """

    rows: Tensor
    out: Tensor
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
        last = self.filled[chunks, None] - 1
        token = self.start[chunks, None] + torch.minimum(slot, last)
        rows = token[:, None] * self.heads + torch.arange(self.heads)[:, None]
        filled = (slot <= last)[:, None].expand_as(rows)
        out = torch.where(filled, rows, self.tokens * self.heads)
        sizes = [n * self.heads for n in active]
        slots = (x.flatten(0, 1).to(device) for x in (rows, out, filled))
        return Group(*slots, not bool(filled.all()), sizes, done * self.heads)


@dataclass(frozen=True)
class Saved:
    """The results of the forward that the backward needs, for all chunks and heads.

    states    [n, K, V], the state that a chunk starts from
    errors    [n, C, V], E
    products  [n, 2, C, C], P and A
    inverse   [n, C, C], N⁻¹; [n, 0, 0] without the delta term
    """

    states: Tensor
    errors: Tensor
    products: Tensor
    inverse: Tensor

    @staticmethod
    def empty(
        like: Tensor, chunks: int, length: int, width: int, value_width: int, delta: bool = True
    ) -> Saved:
        """Unwritten tensors for n = `chunks` chunks of C = `length` tokens, in the type and on the device of `like`.

        width, value_width: K and V. Shapes as above; delta: with the inverse [n, C, C].
        """
        solved = length if delta else 0
        shapes = (width, value_width), (length, value_width), (2, length, length), (solved, solved)
        return Saved(*(like.new_empty(chunks, *shape) for shape in shapes))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors in the order of their names above: [n, K, V], [n, C, V], [n, 2, C, C], [n, C, C]."""
        return self.states, self.errors, self.products, self.inverse

    def at(self, group: Group) -> Saved:
        """Views of the parts that belong to a group of chunks."""
        return Saved(*(x[group.places] for x in self.tensors()))


class Inputs:
    """The arguments of one group of chunks without v, and what follows from the gates alone.

    rows [M, 2, C, K]: q, k; beta [M, C, 1]; decay of g [M, C, K or 1]. Padding has g = 0 and β = 0, so that it
    leaves the state alone.
    """

    def __init__(self, flat: list[Tensor], group: Group) -> None:
        q, k, g, beta = (take(flat[i], group) for i in (0, 1, 3, 4))
        if group.padded:
            padding = ~group.filled.unsqueeze(-1)
            g, beta = g.masked_fill_(padding, 0), beta.masked_fill_(padding, 0)
        self.rows = torch.stack([q, k], 1)
        self.beta = beta
        self.decay = SharedDecay(g) if g.shape[-1] == 1 else ChannelDecay(g)
        self.over = self.decay.prefix[:, -1].unsqueeze(-1)  # [M, K or 1, 1]
        self.rows_from_start = self.rows * self.decay.prefix.unsqueeze(1)
        self.keys_to_end = k * self.decay.suffix


def take(x: Tensor, group: Group) -> Tensor:
    """Gather the group's rows of x [tokens·H, width] in at least fp32, [M, C, width]."""
    taken = x.index_select(0, group.rows.flatten()).view(*group.rows.shape, x.shape[-1])
    return taken.to(torch.promote_types(x.dtype, torch.float32))


def forward(
    flat: list[Tensor],
    state: Tensor,
    chunks: Chunks,
    scale: float,
    saved: Saved | None,
    delta: bool = True,
) -> Tensor:
    """Return o [tokens·H, V], computed one group of chunks after another.

    flat   q, k, v, g, beta as [tokens·H, width]
    state  [N·H, K, V] by rank, overwritten with the final one
    saved  filled for a backward, or None
    delta  whether the update has the delta term
    """
    width, value_width = state.shape[1:]
    out = state.new_empty(flat[0].shape[0] + 1, value_width)
    for group in chunks.groups(max(width, value_width), state.device):
        x = Inputs(flat, group)
        room = (
            Saved.empty(state, group.rows.shape[0], chunks.length, width, value_width, delta)
            if saved is None
            else saved.at(group)
        )
        o = _forward_group(x, take(flat[2], group), state, scale, group, room, delta)
        out.index_copy_(0, group.out.flatten(), o.flatten(0, 1))
    return out[:-1]


def _forward_group(
    x: Inputs, v: Tensor, state: Tensor, scale: float, group: Group, room: Saved, delta: bool
) -> Tensor:
    x.decay.products(x.rows, out=room.products)
    weighted = room.products * x.beta.unsqueeze(1).transpose(2, 3)
    if delta:
        reads = group.steps(_solve(x, v, weighted[:, 1], room))
    else:
        reads = (None,) * len(group.sizes)
        room.errors.copy_(v)
    writes = (x.keys_to_end * x.beta).transpose(1, 2)
    steps = [group.steps(y) for y in (room.states, room.errors, x.over, writes)]
    for before, errors, over, write, read in zip(*steps, reads, strict=True):
        running = state[: before.shape[0]]
        before.copy_(running)
        if read is not None:
            errors.baddbmm_(read, running, alpha=-1)
        running.mul_(over).baddbmm_(write, errors)
    o = torch.bmm(x.rows_from_start[:, 0], room.states)
    return o.baddbmm_(weighted[:, 0], room.errors, beta=scale, alpha=scale)


def _solve(x: Inputs, v: Tensor, weighted: Tensor, room: Saved) -> Tensor:
    """Write N⁻¹ and N⁻¹V into `room`; returns N⁻¹K̄ [M, C, K]. weighted: A·Diag(β)."""
    eye = torch.eye(v.shape[1], dtype=v.dtype, device=v.device).expand_as(room.inverse)
    # The diagonal is taken for 1.
    room.inverse.copy_(torch.linalg.solve_triangular(weighted, eye, upper=False, unitriangular=True))
    torch.bmm(room.inverse, v, out=room.errors)
    return torch.bmm(room.inverse, x.rows_from_start[:, 1])
