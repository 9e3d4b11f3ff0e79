"""The gated delta rule in chunks, in PyTorch: decays inside a chunk, forward, backward, and the two operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import reverse_mode_only, without_autocast

# The decay between the tokens of a chunk, without ever exponentiating a positive number.
#
# Everywhere here: M chunks of C tokens (a power of two); the rows of a chunk are its queries and its keys,
# rows [M, 2, C, K]; keys are rows[:, 1]; gates g are [M, C, K], or [M, C, 1] where the channels share one.
#
# Decays are built up from single gates and never divided out again, so that a gate of −30 costs its neighbours no
# digits. `SharedDecay`, of channels that share a gate, and `ChannelDecay`, of channels with a gate each, both have:
#
#     prefix   exp of the sum of gates from the chunk's first token to this one, both included, like g
#     suffix   exp of the sum of gates from this token, excluded, to the chunk's last, like g
#     products(rows, out)
#              rows_i·k_j under the decay between j and i, into out [M, 2, C, C]: zero for j > i and, for keys, for
#              j = i
#     backward(d_products, d_from_start, d_to_end, d_whole, rows, products)
#              from the gradients of `products` (anything where those are zero), of rows·prefix [M, 2, C, K]
#              (overwritten), of keys·suffix [M, C, K] (overwritten) and of the log of the whole chunk's decay [M, K]:
#              the gradients of queries and keys [M, C, K] and of g

VANISHED = {torch.float32: -40.0, torch.float64: -300.0}
"""Sums of log gates below these decay to 0: products of two such decays would be denormal, which CPUs are slow at."""


def vanishing_exp_(x: Tensor) -> Tensor:
    """Compute exp(x) [...] of x [...] ≤ 0 in place, and 0 where that is too small to matter."""
    # Clamped first, because denormal exponentials take sixty times as long.
    return drop_vanished_(x.clamp_min_(VANISHED[x.dtype]).exp_())


def drop_vanished_(decay: Tensor) -> Tensor:
    """Set a decay [...] to 0, in place, where it is too small to matter."""
    return F.threshold_(decay, 1.001 * math.exp(VANISHED[decay.dtype]), 0.0)


def lower_triangle(like: Tensor, length: int) -> Tensor:
    """Return ones on and below the diagonal, [length, length], in the type and on the device of `like`."""
    return torch.ones(length, length, dtype=like.dtype, device=like.device).tril()


class SharedDecay:
    """The decay of chunks whose channels share a gate: a number between two tokens, `between` [M, C, C]."""

    def __init__(self, g: Tensor) -> None:
        self.lower = lower_triangle(g, g.shape[1])
        self.before = self.lower.tril(-1)
        g = g.clamp_min(VANISHED[g.dtype])  # 0 times a gate of −∞ would not be 0.
        self.between = vanishing_exp_(torch.matmul(self.lower, g * self.before)).mul_(self.lower)
        self.prefix, self.suffix = (
            vanishing_exp_(torch.matmul(self.lower, g)),
            self.between[:, -1].unsqueeze(-1),
        )

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write rows_i·k_j, decayed from j to i, of rows [M, 2, C, K] into out [M, 2, C, C], in the dtype of both.

        out[:, 0] has the queries' products, zero for j > i; out[:, 1] those of keys, zero for j ≥ i.
        """
        keys = rows[:, 1].transpose(1, 2).contiguous()
        torch.mul(torch.bmm(rows.flatten(1, 2), keys).view_as(out), self.between.unsqueeze(1), out=out)
        out[:, 1] *= self.before

    def backward(
        self,
        d_products: Tensor,
        d_from_start: Tensor,
        d_to_end: Tensor,
        d_whole: Tensor,
        rows: Tensor,
        products: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries [M, C, K], keys [M, C, K] and gates [M, C, 1], in the dtype of rows.

        Given are the gradients d_products [M, 2, C, C], d_from_start [M, 2, C, K] of rows·prefix, d_to_end [M, C, K]
        of keys·suffix and d_whole [M, K] of the log of the chunk's decay, and rows and products of the forward.
        d_from_start and d_to_end are overwritten; d_products may hold anything where its products are zero.
        """
        d_rows = d_from_start.mul_(self.prefix.unsqueeze(1))
        d_keys = d_to_end.mul_(self.suffix)
        d_prefix = (d_rows * rows).sum((1, 3)).unsqueeze(-1)
        d_prefix[:, -1] += d_whole.sum(-1, keepdim=True)
        d_suffix = (d_keys * rows[:, 1]).sum(-1, keepdim=True)
        d_between = torch.matmul(self.lower.T, (d_products * products).sum(1)).mul_(self.before)
        d_g = torch.matmul(self.lower.T, d_prefix) + torch.matmul(self.before, d_suffix)
        d_g += d_between.sum(-1, keepdim=True)

        d_products = d_products * self.between.unsqueeze(1)
        d_products[:, 1] *= self.before
        d_products = d_products.flatten(1, 2)
        d_rows.flatten(1, 2).baddbmm_(d_products, rows[:, 1])
        d_keys += d_rows[:, 1]
        return d_rows[:, 0], d_keys.baddbmm_(d_products.transpose(1, 2), rows.flatten(1, 2)), d_g


@dataclass(frozen=True)
class Neighbours:
    """The lowest level, pairs of tokens: the right one decays by its own gate, right [M, C/2, K]."""

    right: Tensor

    def sides(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the right rows [M, 2, C/2, K], not decayed, and the left keys [M, C/2, K], decayed for both."""
        pairs = rows.view(*rows.shape[:2], -1, 2, rows.shape[-1])
        return pairs[:, :, :, 1], pairs[:, 1, :, 0] * self.right

    def pairs(self, products: Tensor) -> Tensor:
        """The entries of products [M, 2, C, C] that belong to this level, a view [M, 2, C/2]."""
        return products[:, :, 1::2, ::2].diagonal(dim1=2, dim2=3)

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write this level's products of rows [M, 2, C, K] with keys into out [M, 2, C, C]."""
        right, left = self.sides(rows)
        torch.sum(right * left.unsqueeze(1), -1, out=self.pairs(out))

    def backward(self, d_products: Tensor, rows: Tensor, d_rows: Tensor, d_keys: Tensor) -> None:
        """Add this level's gradients to d_rows [M, 2, C, K] of rows and, as left factors, to d_keys [M, C, K].

        d_products [M, 2, C, C]: the gradient of `products`; rows [M, 2, C, K] as there. No matrix products: they would
        be outer ones.
        """
        right, left = self.sides(rows)
        grad = self.pairs(d_products).unsqueeze(-1)
        d_rows.view(*rows.shape[:2], -1, 2, rows.shape[-1])[:, :, :, 1].addcmul_(grad, left.unsqueeze(1))
        d_left = (grad[:, 0] * right[:, 0]).addcmul_(grad[:, 1], right[:, 1])
        d_keys[:, ::2].addcmul_(d_left, self.right)


@dataclass(frozen=True)
class Level:
    """A higher level: blocks of 2·half tokens, and the decays of their right rows and left keys.

    right  the decay from the middle to the token, its own included, [M, C/2h, h, K]
    left   the decay from the token, its own excluded, to the middle, likewise
    """

    half: int
    right: Tensor
    left: Tensor

    def split(self, x: Tensor, side: int, dim: int = 1) -> Tensor:
        """Return the left (0) or right (1) halves of the blocks along a token axis, a view [..., C/2h, h, ...]."""
        return x.view(*x.shape[:dim], -1, 2, self.half, *x.shape[dim + 1 :]).select(dim + 1, side)

    def factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decayed rows of right halves [M·C/2h, 2h, K] and the decayed keys of left ones [M·C/2h, h, K]."""
        chunks, blocks, half, width = self.right.shape
        right = rows.new_empty(
            chunks, blocks, 2, half, width
        )  # A product would keep the order of rows in memory.
        torch.mul(self.split(rows, 1, dim=2).transpose(1, 2), self.right.unsqueeze(2), out=right)
        return right.view(-1, 2 * half, width), (self.split(rows[:, 1], 0) * self.left).view(-1, half, width)

    def pairs(self, products: Tensor) -> Tensor:
        """The entries of products [M, 2, C, C] that belong to this level, a view [M, C/2h, 2, h, h]."""
        blocks = self.split(self.split(products, 0, dim=3), 1, dim=2)  # [M, 2, C/2h, h, C/2h, h]
        return blocks.diagonal(dim1=2, dim2=4).movedim(-1, 1)

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write this level's products of rows [M, 2, C, K] with keys into out [M, 2, C, C]."""
        right, left = self.factors(rows)
        pairs = self.pairs(out)
        # Contiguous, because batches of small products with a transposed factor take five times as long.
        pairs.copy_(torch.bmm(right, left.transpose(1, 2).contiguous()).view(pairs.shape))

    def backward(self, d_products: Tensor, rows: Tensor, d_rows: Tensor, d_keys: Tensor) -> None:
        """Add this level's gradients to d_rows [M, 2, C, K] of rows and, as left factors, to d_keys [M, C, K].

        d_products [M, 2, C, C]: the gradient of `products`; rows [M, 2, C, K] as there.
        """
        right, left = self.factors(rows)
        pairs = self.pairs(d_products).reshape(-1, 2 * self.half, self.half)
        d_right = torch.bmm(pairs, left).view(*self.right.shape[:2], 2, *self.right.shape[2:])
        d_left = torch.bmm(pairs.transpose(1, 2), right).view_as(self.left)
        self.split(d_rows, 1, dim=2).addcmul_(d_right.transpose(1, 2), self.right.unsqueeze(1))
        self.split(d_keys, 0).addcmul_(d_left, self.left)


class ChannelDecay:
    """The decay of chunks whose channels have a gate each.

    For tokens i > j, Σ_c x_ic·k_jc·exp(g_{j+1,c} + … + g_{i,c}) is no product of a row factor and a column factor
    that both stay in range: exp(−g_1 − … − g_j) overflows. Around a point m between them it is one, though,
    exp(g_{m+1} + … + g_i)·exp(g_{j+1} + … + g_m), both factors ≤ 1. So the products of a chunk's right half with its
    left half are taken around its middle, and likewise within each half: log2(C) levels, each a batch of matrix
    products, which together hold every pair once.

    The decays of a level are products of those of the level below, so that exp is taken once a gate.
    """

    def __init__(self, g: Tensor) -> None:
        self.prefix, self.suffix = vanishing_exp_(g), torch.ones_like(g)
        right = self.prefix[:, 1::2].clone()
        self.levels: list[Neighbours | Level] = [Neighbours(right)]
        self.suffix[:, ::2] = right
        drop_vanished_(self.prefix[:, 1::2].mul_(self.prefix[:, ::2]))
        half = 2
        while half < g.shape[1]:
            self._add_level(half)
            half *= 2

    def _add_level(self, half: int) -> None:
        """Add a level; prefix and suffix, which were those of its halves, become those of its blocks."""
        (before, right), (left, _) = (
            x.view(x.shape[0], -1, 2, half, x.shape[2]).unbind(2) for x in (self.prefix, self.suffix)
        )
        self.levels.append(Level(half, right.clone(), left.clone()))
        drop_vanished_(left.mul_(right[:, :, -1:]))
        drop_vanished_(right.mul_(before[:, :, -1:]))

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write Σ_c rows_ic·k_jc·exp(g_{j+1,c} + … + g_{i,c}) of rows [M, 2, C, K] into out [M, 2, C, C].

        out[:, 0] has the queries' products, zero for j > i; out[:, 1] those of keys, zero for j ≥ i.
        """
        out.zero_()
        for level in self.levels:
            level.products(rows, out)
        out[:, 0].diagonal(dim1=1, dim2=2).copy_((rows[:, 0] * rows[:, 1]).sum(-1))

    def backward(
        self,
        d_products: Tensor,
        d_from_start: Tensor,
        d_to_end: Tensor,
        d_whole: Tensor,
        rows: Tensor,
        products: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and gates, each [M, C, K], in the dtype of rows.

        Given are the gradients d_products [M, 2, C, C], d_from_start [M, 2, C, K] of rows·prefix, d_to_end [M, C, K]
        of keys·suffix and d_whole [M, K] of the log of the chunk's decay, and rows of the forward; products is not
        needed. d_from_start and d_to_end are overwritten; d_products may hold anything where its products are zero.
        """
        queries, keys = rows.unbind(1)
        d_rows, d_keys = d_from_start.mul_(self.prefix.unsqueeze(1)), torch.zeros_like(d_to_end)
        d_to_end.mul_(self.suffix)
        for level in self.levels:
            level.backward(d_products, rows, d_rows, d_keys)
        d_queries, d_right_keys = d_rows.unbind(1)
        # The log decay of tokens i > j is the sum of gates up to i less the sum up to j.
        d_upto = (queries * d_queries).addcmul_(keys, d_right_keys).addcmul_(keys, d_keys, value=-1)
        d_upto[:, -1] += d_whole
        lower = lower_triangle(rows, rows.shape[2])
        d_g = torch.matmul(lower.T, d_upto).add_(torch.matmul(lower.tril(-1), keys * d_to_end))

        same = d_products[:, 0].diagonal(dim1=1, dim2=2).unsqueeze(-1)
        d_keys.add_(d_right_keys).add_(d_to_end).addcmul_(same, queries)
        return torch.addcmul(d_queries, same, keys), d_keys, d_g


# The forward pass: sequences as chunks, and the WY form of the rule in each.
#
# Within a chunk that starts from state S₀, let G_i be the sum of its gates up to token i, let products be under the
# decay between their tokens, and let e_i = v_i − (Diag(exp g_i)·S_{i−1})ᵀk_i be the error that token i corrects:
#
#     S_i = exp(G_i)⊙S₀ + Σ_{j≤i} exp(G_i − G_j)⊙k_j · β_j·e_jᵀ
#     e_i = v_i − (exp(G_i)⊙k_i)ᵀS₀ − Σ_{j<i} A_ij·β_j·e_j                 A_ij = k_i·k_j, decayed
#     o_i = (exp(G_i)⊙q_i)ᵀS₀ + Σ_{j≤i} P_ij·β_j·e_j                       P_ij = q_i·k_j, decayed
#
# so that E = N⁻¹V − N⁻¹K̄·S₀ with N = I + A·Diag(β), K̄ = exp(G)⊙K. Everything but two products a chunk is computed
# for many chunks at once; the two carry the state from chunk to chunk.
#
# Without the delta term (`delta=False`, gated linear attention) nothing is read before it is written: e_i = v_i and
# N = I.

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


# The gradients, in the notation of the forward pass, from what it saved.
#
# The two products a chunk that carry the state are run from the last chunk to the first, and carry its gradient.


def backward(
    flat: list[Tensor],
    d_out: Tensor,
    d_state: Tensor,
    chunks: Chunks,
    scale: float,
    saved: Saved,
    delta: bool = True,
) -> list[Tensor]:
    """Return the gradients of `flat`, computed one group of chunks after another, from the last to the first.

    d_out    [tokens·H, V]
    d_state  [N·H, K, V] by rank, the final state's gradient, overwritten with the initial's
    """
    width, value_width = d_state.shape[1:]
    grads = [d_state.new_empty(x.shape[0] + 1, x.shape[1]) for x in flat]
    for group in reversed(list(chunks.groups(max(width, value_width), d_state.device))):
        x = Inputs(flat, group)
        d_o = take(d_out, group).mul_(scale)
        if group.padded:
            d_o.masked_fill_(~group.filled.unsqueeze(-1), 0)
        gradients = _backward_group(x, d_o, d_state, group, saved.at(group), delta)
        for grad, part in zip(grads, gradients, strict=True):
            grad.index_copy_(0, group.out.flatten(), part.flatten(0, 1))
    return [grad[:-1].to(x.dtype) for grad, x in zip(grads, flat, strict=True)]


def _backward_group(
    x: Inputs, d_o: Tensor, d_state: Tensor, group: Group, saved: Saved, delta: bool
) -> tuple[Tensor, ...]:
    """d_o [M, C, V], scaled. Returns the gradients of q, k, v, g and β."""
    d_errors, d_after = _inter_chunk_backward(x, d_o, d_state, group, saved, delta)
    d_v = torch.bmm(saved.inverse.transpose(1, 2), d_errors) if delta else d_errors
    # The left factors of S₀ and E for queries and for keys: o = Q̄·S₀ + P·Diag(β)·E and N·E = V − K̄·S₀.
    outer = torch.stack([d_o, d_v if delta else torch.zeros_like(d_v)], 1)
    outer[:, 1].neg_()
    outer = outer.flatten(1, 2)
    d_weighted = torch.bmm(outer, saved.errors.transpose(1, 2)).view_as(saved.products)
    d_from_start = torch.bmm(outer, saved.states.transpose(1, 2)).view_as(x.rows)
    d_to_end = torch.bmm(saved.errors, d_after.transpose(1, 2))
    d_whole = (d_after * saved.states).sum(2).mul_(x.over.squeeze(-1))
    d_beta = (d_weighted * saved.products).sum((1, 2)).unsqueeze(-1)
    d_beta += (d_to_end * x.keys_to_end).sum(-1, keepdim=True)
    d_products = d_weighted.mul_(x.beta.unsqueeze(1).transpose(2, 3))
    d_to_end *= x.beta
    d_q, d_k, d_g = x.decay.backward(d_products, d_from_start, d_to_end, d_whole, x.rows, saved.products)
    return d_q, d_k, d_v, d_g, d_beta


def _inter_chunk_backward(
    x: Inputs, d_o: Tensor, d_state: Tensor, group: Group, saved: Saved, delta: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of E [M, C, V] and of the state after every chunk [M, K, V]."""
    weighted = saved.products[:, 0] * x.beta.transpose(1, 2)
    reads = (None,) * len(group.sizes)
    if delta:
        reads = group.steps(torch.bmm(saved.inverse, x.rows_from_start[:, 1]).transpose(1, 2))
    writes = x.keys_to_end * x.beta
    d_errors = torch.bmm(weighted.transpose(1, 2), d_o)
    d_start = torch.bmm(x.rows_from_start[:, 0].transpose(1, 2), d_o)
    d_after = torch.empty_like(saved.states)
    steps = [*(group.steps(y) for y in (d_after, d_errors, d_start, x.over, writes)), reads]
    for after, d_error, start, over, write, read in zip(*map(reversed, steps), strict=True):
        running = d_state[: after.shape[0]]
        after.copy_(running)
        d_error.baddbmm_(write, running)
        torch.addcmul(start, running, over, out=running)
        if read is not None:
            running.baddbmm_(read, d_error, alpha=-1)
    return d_errors, d_after


# The backend, as two operators that are opaque to tracing.
#
# The lengths of packed sequences are data; and within an operator many chunks share a few buffers, where in a traced
# graph each would have its own.


def delta_rule_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    delta: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.delta_rule` in chunks of up to 32 tokens in the WY form; heads as of beta.

    delta=False leaves the delta term out: S_t = Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ, gated linear attention.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V]. Returns
    o [B, T, H, V] in v's dtype and the state [N, H, K, V] in at least fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    g = g.unsqueeze(-1) if g.dim() == 3 else g
    wanted = (q, k, v, g, beta, initial_state)
    reverse_mode_only("delta_rule", *wanted)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in wanted)
    inputs = q, k, v, g, beta.unsqueeze(-1), initial_state, cu_seqlens
    o, state, *_ = chunked_delta_rule(*inputs, scale, keep, delta)
    return o, state if output_final_state else None


@torch.library.custom_op("archzoo::delta_rule", mutates_args=())
def chunked_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    keep: bool,
    delta: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return o, the final state and, if `keep`, what the backward needs (else empty tensors).

    g [B, T, H, K or 1], beta [B, T, H, 1]; the rest as in `delta_rule`.
    """
    chunks = _chunks(q, cu_seqlens)
    wide = torch.promote_types(q.dtype, torch.float32)
    order = chunks.order.to(q.device)
    state = q.new_zeros(_state_shape(q, v, cu_seqlens), dtype=wide)
    if initial_state is not None:
        state.copy_(initial_state.index_select(0, order))
    saved = _empty_saved(q, v, cu_seqlens, wide, keep, delta)
    with without_autocast(q):
        flat, room = _flat(q, k, v, g, beta), saved if keep else None
        o = forward(flat, state.flatten(0, 1), chunks, scale, room, delta)
    final = torch.empty_like(state).index_copy_(0, order, state)
    return o.view_as(v).to(v.dtype), final, *saved.tensors()


@chunked_delta_rule.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, keep, delta):
    wide = torch.promote_types(q.dtype, torch.float32)
    final = q.new_empty(_state_shape(q, v, cu_seqlens), dtype=wide)
    return v.new_empty(v.shape), final, *_empty_saved(q, v, cu_seqlens, wide, keep, delta).tensors()


@torch.library.custom_op("archzoo::delta_rule_backward", mutates_args=())
def chunked_delta_rule_backward(
    d_o: Tensor | None,
    d_final: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor | None,
    states: Tensor,
    errors: Tensor,
    products: Tensor,
    inverse: Tensor,
    scale: float,
    delta: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, g, beta, each in its shape and dtype, and of the initial state [N, H, K, V].

    d_o [B, T, H, V] and d_final [N, H, K, V] are the gradients of both results, None for zeros. g [B, T, H, K or 1] and
    beta [B, T, H, 1] are inputs of `chunked_delta_rule`; states, errors, products and inverse what it kept
    (`chunked.Saved`). The state and its gradient are fp32, or fp64 where q is.
    """
    chunks = _chunks(q, cu_seqlens)
    order = chunks.order.to(q.device)
    d_state = states.new_zeros(_state_shape(q, v, cu_seqlens))
    if d_final is not None:
        d_state.copy_(d_final.index_select(0, order))
    flat = _flat(q, k, v, g, beta)
    saved = Saved(states, errors, products, inverse)
    with without_autocast(q):
        d_o = torch.zeros_like(v) if d_o is None else d_o
        grads = backward(flat, *_flat(d_o), d_state.flatten(0, 1), chunks, scale, saved, delta)
    d_initial = torch.empty_like(d_state).index_copy_(0, order, d_state)
    return *(x.view_as(y) for x, y in zip(grads, (q, k, v, g, beta), strict=True)), d_initial


@chunked_delta_rule_backward.register_fake
def _(d_o, d_final, q, k, v, g, beta, cu_seqlens, states, errors, products, inverse, scale, delta):
    gradients = (x.new_empty(x.shape) for x in (q, k, v, g, beta))
    return *gradients, states.new_empty(_state_shape(q, v, cu_seqlens))


def _save(ctx, inputs, output):
    q, k, v, g, beta, initial_state, cu_seqlens, ctx.scale, _, ctx.delta = inputs
    ctx.initial_dtype = None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, g, beta, cu_seqlens, *output[2:])


def _backward(ctx, d_o, d_final, *_):
    *grads, d_initial = chunked_delta_rule_backward(d_o, d_final, *ctx.saved_tensors, ctx.scale, ctx.delta)
    d_initial = None if ctx.initial_dtype is None else d_initial.to(ctx.initial_dtype)
    return *grads, d_initial, None, None, None, None


chunked_delta_rule.register_autograd(_backward, setup_context=_save)


def _flat(*tensors: Tensor) -> list[Tensor]:
    """[B, T, H, D] -> [B·T·H, D]."""
    return [x.reshape(-1, x.shape[-1]) for x in tensors]


def _chunks(q: Tensor, cu_seqlens: Tensor | None) -> Chunks:
    batch, time, heads = q.shape[:3]
    if cu_seqlens is None:
        return Chunks.of(torch.full((batch,), time), heads)
    return Chunks.of(cu_seqlens.detach().to("cpu", torch.int64).diff(), heads)


def _sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _state_shape(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, int, int, int]:
    return _sequences(q, cu_seqlens), q.shape[2], q.shape[3], v.shape[3]


def _empty_saved(
    q: Tensor, v: Tensor, cu_seqlens: Tensor | None, wide: torch.dtype, keep: bool, delta: bool
) -> Saved:
    """Empty `Saved`, in sizes that follow from shapes alone, as tracing needs them."""
    tokens, sequences = q.shape[0] * q.shape[1], _sequences(q, cu_seqlens)
    chunks = most_chunks(tokens, sequences) * q.shape[2] if keep else 0
    like = q.new_empty(0, dtype=wide)
    return Saved.empty(like, chunks, chunk_length(tokens, sequences), q.shape[3], v.shape[3], delta)


@register_flop_formula(torch.ops.archzoo.delta_rule)
def _forward_flops(
    q, k, v, g, beta, initial_state, cu_seqlens, scale, keep, delta, out_shape=None, **_options
) -> int:
    """Sequences of equal length; every pair of a chunk, masked or not, and the solve as C³."""
    sequences = q[0] if cu_seqlens is None else cu_seqlens[0] - 1
    tokens, width, value_width = q[0] * q[1], q[3], v[3]
    c = chunk_length(tokens, sequences)
    chunks = sequences * -(-tokens // (sequences * c))
    if delta:
        intra_chunk = c**3 + c**2 * (6 * width + 4 * value_width)
        return q[2] * chunks * (intra_chunk + 6 * c * width * value_width)
    return q[2] * chunks * (c**2 * (4 * width + 2 * value_width) + 4 * c * width * value_width)


@register_flop_formula(torch.ops.archzoo.delta_rule_backward)
def _backward_flops(d_o, d_final, q, k, v, g, beta, cu_seqlens, *args, out_shape=None, **_options) -> int:
    *_, delta = args
    return 2 * _forward_flops(q, k, v, g, beta, None, cu_seqlens, None, None, delta)
