"""The gradient of blocks.py, written out: torch.func does not run inside an operator under a dispatch mode."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.path_attention.blocks import Blocks, Turns


def prepare_backward(
    d: Blocks, turns: Turns | None, q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, w, beta, g from those of the blocks; shapes as in `prepare`."""
    dg = None if d.total is None else _gate_sums_backward(d)
    dq, dk = d.q + d.logits @ k, d.k + d.logits.mT @ q
    if turns is None:
        return dq, dk, None, None, dg
    d_passed, d_solved, dw = _turned_backward(d, turns, w)
    d_met, d_gram, d_right, d_beta = _solved_backward(d_solved, turns, w, beta)
    dq += d_passed @ w
    dk += d_met.mT @ w
    dw += d_passed.mT @ q + d_met @ k + (d_gram + d_gram.mT) @ w + d_right
    return dq, dk, dw, d_beta, dg


def _turned_backward(d: Blocks, turns: Turns, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `passed` and `solved`, and the part of w's that does not go through them."""
    tokens = w.shape[2]
    skipped, u = turns.solved.split([tokens, w.shape[-1]], -1)
    d_both = torch.cat([d.logits, d.q], -1)
    d_passed = (d_both @ turns.solved.mT).neg_().unflatten(2, (-1, tokens)).tril_().flatten(2, 3)
    d_solved = turns.passed.mT @ d_both + w @ torch.cat([d.k.mT, d.path.mT], -1)
    return d_passed, d_solved.neg_(), -(skipped @ d.k + u @ d.path)


def _solved_backward(
    d_solved: Tensor, turns: Turns, w: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `met`, of `gram`, of w as a right side of the triangular system, and of beta."""
    tokens = w.shape[2]
    system = (beta[..., None] * turns.gram).mT
    d_right = torch.linalg.solve_triangular(system, d_solved, upper=True, unitriangular=True)
    d_system = (d_right @ turns.solved.mT).neg_().tril_(-1)
    d_met, dw = d_right.split([tokens, w.shape[-1]], -1)
    d_met = d_met.tril(-1)
    d_beta = (d_met * turns.met).sum(-1) + (dw * w).sum(-1) + (d_system * turns.gram).sum(-1)
    return beta[..., None] * d_met, beta[..., None] * d_system, beta[..., None] * dw, d_beta


def _gate_sums_backward(d: Blocks) -> Tensor:
    """Inside a block Σ d_ij over i ≥ s > j, which is Σ_{t≥s} (row t − column t), because d_ij = 0 for i < j."""
    tokens = d.logits.shape[-1]
    inner = d.logits.unflatten(2, (-1, tokens)).transpose(1, 2)
    from_here = inner.sum(-1) - inner.sum(-2) + d.before
    until_here = d.after.cumsum(-1) - d.after
    return from_here.flip(-1).cumsum(-1).flip(-1) + until_here + d.total[..., None]
