"""The gradients of the chunked gated delta rule, in the notation of chunked.py, from what its forward saved.

The two products a chunk that carry the state are run from the last chunk to the first, and carry its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.delta_rule.chunked import Chunks, Group, Inputs, Saved, take


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
        found = _backward_group(x, d_o, d_state, group, saved.at(group), delta)
        for grad, part in zip(grads, found, strict=True):
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
