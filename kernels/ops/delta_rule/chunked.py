"""The gated delta rule a chunk at a time: the WY form, forward and backward.

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

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.delta_rule.chunks import Chunks, Group
from kernels.ops.delta_rule.decay import ChannelDecay, SharedDecay


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
        """Unwritten tensors for so many chunks of so many tokens, in the type and on the device of `like`."""
        solved = length if delta else 0
        shapes = (width, value_width), (length, value_width), (2, length, length), (solved, solved)
        return Saved(*(like.new_empty(chunks, *shape) for shape in shapes))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors in the order of their names above."""
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
    """Gather the group's rows of x [tokens·H, width] in at least fp32, [M, C, width]; padding is undefined."""
    rows = group.rows.clamp_max(x.shape[0] - 1) if group.padded else group.rows
    taken = x.index_select(0, rows.flatten()).view(*rows.shape, x.shape[-1])
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
        out.index_copy_(0, group.rows.flatten(), o.flatten(0, 1))
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
            d_o.mul_(group.filled.unsqueeze(-1))
        found = _backward_group(x, d_o, d_state, group, saved.at(group), delta)
        for grad, part in zip(grads, found, strict=True):
            grad.index_copy_(0, group.rows.flatten(), part.flatten(0, 1))
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
