"""The gated delta rule a chunk at a time: the WY form, forward and backward.

Inside a chunk that starts from state S₀, let G_i be the sum of its gates up to token i, let products be under the decay
between their tokens, and let e_i = v_i − (Diag(exp g_i)·S_{i−1})ᵀk_i be the error that token i corrects:

    S_i = exp(G_i)⊙S₀ + Σ_{j≤i} exp(G_i − G_j)⊙k_j · β_j·e_jᵀ
    e_i = v_i − (exp(G_i)⊙k_i)ᵀS₀ − Σ_{j<i} A_ij·β_j·e_j                 A_ij = k_i·k_j, decayed
    o_i = (exp(G_i)⊙q_i)ᵀS₀ + Σ_{j≤i} P_ij·β_j·e_j                       P_ij = q_i·k_j, decayed

so that E = N⁻¹V − N⁻¹K̄·S₀ with N = I + A·Diag(β), K̄ = exp(G)⊙K. Everything but two products a chunk is computed for
many chunks at once; the two carry the state from chunk to chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.delta_rule.chunks import Chunks, Group
from kernels.ops.delta_rule.decay import decay_of


@dataclass(frozen=True)
class Saved:
    """What the forward leaves to the backward, for all chunks and heads.

    states    [n, K, V], the state that a chunk starts from
    errors    [n, C, V], E
    products  [n, C, 2, C], P and A
    inverse   [n, C, C], N⁻¹
    """

    states: Tensor
    errors: Tensor
    products: Tensor
    inverse: Tensor

    @staticmethod
    def room(like: Tensor, chunks: int, length: int, width: int, value_width: int) -> Saved:
        shapes = (width, value_width), (length, value_width), (length, 2, length), (length, length)
        return Saved(*(like.new_empty(chunks, *shape) for shape in shapes))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.states, self.errors, self.products, self.inverse

    def at(self, group: Group) -> Saved:
        return Saved(*(x[group.places] for x in self.tensors()))


class Inputs:
    """The arguments of one group of chunks, and what follows from the gates alone.

    rows [M, C, 2, K]: scaled q, k; v [M, C, V]; beta [M, C, 1]; decay of g [M, C, K or 1]. Padding has g = 0 and β = 0,
    so that it leaves the state alone.
    """

    def __init__(self, flat: list[Tensor], scale: float, group: Group) -> None:
        wide = torch.promote_types(flat[0].dtype, torch.float32)
        rows = group.rows.clamp_max(flat[0].shape[0] - 1)
        q, k, v, g, beta = (take(x, rows).to(wide) for x in flat)
        padding = ~group.filled.unsqueeze(-1)
        self.rows = torch.stack([q * scale, k], 2)
        self.v, self.beta = v, beta.masked_fill(padding, 0)
        self.decay = decay_of(g.masked_fill(padding, 0))
        self.over = self.decay.prefix[:, -1].unsqueeze(-1)  # [M, K or 1, 1]
        self.rows_from_start = self.rows * self.decay.prefix.unsqueeze(2)
        self.keys_to_end = k * self.decay.suffix


def take(x: Tensor, rows: Tensor) -> Tensor:
    return x.index_select(0, rows.flatten()).view(*rows.shape, x.shape[-1])


def forward(
    flat: list[Tensor], state: Tensor, chunks: Chunks, scale: float, saved: Saved | None
) -> tuple[Tensor, Tensor]:
    """flat: q, k, v, g, beta as [tokens·H, width]; state [N·H, K, V] by rank, overwritten with the final one.

    Returns o [tokens·H, V]. `saved`: filled for a backward, or None.
    """
    width, value_width = state.shape[1:]
    out = state.new_empty(flat[0].shape[0] + 1, value_width)
    for group in chunks.groups(max(width, value_width), state.device):
        x = Inputs(flat, scale, group)
        room = (
            Saved.room(state, group.rows.shape[0], chunks.length, width, value_width)
            if saved is None
            else saved.at(group)
        )
        o = _forward_group(x, state, group, room)
        out.index_copy_(0, group.rows.flatten(), o.flatten(0, 1))
    return out[:-1]


def _forward_group(x: Inputs, state: Tensor, group: Group, room: Saved) -> Tensor:
    room.products.copy_(x.decay.products(x.rows))
    weighted = room.products * x.beta.transpose(1, 2).unsqueeze(1)
    eye = torch.eye(x.v.shape[1], dtype=x.v.dtype, device=x.v.device).expand_as(room.inverse)
    # The diagonal is taken for 1.
    room.inverse.copy_(torch.linalg.solve_triangular(weighted[:, :, 1], eye, upper=False, unitriangular=True))
    errors = torch.bmm(room.inverse, x.v)
    reads = torch.bmm(room.inverse, x.rows_from_start[:, :, 1])
    writes = (x.keys_to_end * x.beta).transpose(1, 2)
    for step in group.steps:
        running = state[: step.stop - step.start]
        room.states[step] = running
        errors[step].baddbmm_(reads[step], running, alpha=-1)
        running.mul_(x.over[step]).baddbmm_(writes[step], errors[step])
    room.errors.copy_(errors)
    return torch.bmm(x.rows_from_start[:, :, 0], room.states).baddbmm_(weighted[:, :, 0], errors)


def backward(
    flat: list[Tensor], d_out: Tensor, d_state: Tensor, chunks: Chunks, scale: float, saved: Saved
) -> list[Tensor]:
    """d_out [tokens·H, V]; d_state [N·H, K, V] by rank: the final state's gradient, overwritten with the initial's.

    Returns the gradients of `flat`.
    """
    width, value_width = d_state.shape[1:]
    grads = [d_state.new_empty(x.shape[0] + 1, x.shape[1]) for x in flat]
    for group in reversed(list(chunks.groups(max(width, value_width), d_state.device))):
        x = Inputs(flat, scale, group)
        d_o = take(d_out, group.rows.clamp_max(d_out.shape[0] - 1)).to(x.v.dtype)
        d_o = d_o * group.filled.unsqueeze(-1)
        found = _backward_group(x, d_o, d_state, group, saved.at(group))
        found[0].mul_(scale)
        for grad, part in zip(grads, found, strict=True):
            grad.index_copy_(0, group.rows.flatten(), part.flatten(0, 1))
    return [grad[:-1].to(x.dtype) for grad, x in zip(grads, flat, strict=True)]


def _backward_group(x: Inputs, d_o: Tensor, d_state: Tensor, group: Group, saved: Saved) -> list[Tensor]:
    d_errors, d_after = _backward_scan(x, d_o, d_state, group, saved)
    d_v = torch.bmm(saved.inverse.transpose(1, 2), d_errors)
    # What stands left of S₀ and E for queries and for keys: o = Q̄·S₀ + P·Diag(β)·E and N·E = V − K̄·S₀.
    outer = torch.stack([d_o, -d_v], 2).flatten(1, 2)
    d_weighted = torch.bmm(outer, saved.errors.transpose(1, 2)).view_as(saved.products)
    d_from_start = torch.bmm(outer, saved.states.transpose(1, 2)).view_as(x.rows)
    d_to_end = torch.bmm(saved.errors, d_after.transpose(1, 2))
    # Products are 0 wherever their gradient has to be, except where k or a decay is 0 by itself.
    length = d_o.shape[1]
    lower = torch.ones(length, length, dtype=d_o.dtype, device=d_o.device).tril()
    d_weighted *= torch.stack([lower, lower.tril(-1)], 1)
    d_beta = (d_weighted * saved.products).sum((1, 2)).unsqueeze(-1)
    d_beta += (d_to_end * x.keys_to_end).sum(-1, keepdim=True)

    d_products = d_weighted.mul_(x.beta.transpose(1, 2).unsqueeze(1))
    d_to_end *= x.beta
    d_prefix = (d_from_start * x.rows_from_start).sum(2)
    d_prefix[:, -1] += (d_after * saved.states * x.over).sum(2)
    d_suffix = d_to_end * x.keys_to_end
    if x.decay.prefix.shape[-1] == 1:
        d_prefix, d_suffix = d_prefix.sum(-1, keepdim=True), d_suffix.sum(-1, keepdim=True)
    d_rows, d_keys, d_g = x.decay.backward(d_products, x.rows, saved.products, d_prefix, d_suffix)
    d_rows.addcmul_(d_from_start, x.decay.prefix.unsqueeze(2))
    d_keys.addcmul_(d_to_end, x.decay.suffix)
    return [d_rows[:, :, 0], d_rows[:, :, 1] + d_keys, d_v, d_g, d_beta]


def _backward_scan(
    x: Inputs, d_o: Tensor, d_state: Tensor, group: Group, saved: Saved
) -> tuple[Tensor, Tensor]:
    """Gradients of E [M, C, V] and of the state after every chunk [M, K, V]."""
    weighted = saved.products[:, :, 0] * x.beta.transpose(1, 2)
    reads = torch.bmm(saved.inverse, x.rows_from_start[:, :, 1]).transpose(1, 2)
    writes = x.keys_to_end * x.beta
    d_errors = torch.bmm(weighted.transpose(1, 2), d_o)
    d_start = torch.bmm(x.rows_from_start[:, :, 0].transpose(1, 2), d_o)
    d_after = torch.empty_like(saved.states)
    for step in reversed(group.steps):
        running = d_state[: step.stop - step.start]
        d_after[step] = running
        d_errors[step].baddbmm_(writes[step], running)
        running.mul_(x.over[step]).add_(d_start[step]).baddbmm_(reads[step], d_errors[step], alpha=-1)
    return d_errors, d_after
