"""The residual of every token's conjugate gradient after every step."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.mesa.reference import iterates, write

BLOCK = 64
"""Tokens whose matrices are held, and solved, at a time."""


def mesa_residuals(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute ‖q_t − (H_t + Λ)·x‖ / ‖q_t‖ of the x that `mesa` has for (H_t + Λ)⁻¹·q_t after 0, 1 … cg_steps steps.

    Arguments as in `kernels.mesa` -> [cg_steps + 1, B, T, H] in at least fp32; the first is 1, and all are 0 for
    q = 0. For inspecting the solver, not for training: every matrix H_t is formed.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, beta, lamb = (x.to(wide) for x in (q, k, beta, lamb))
    gamma = g.to(wide).exp()
    if cu_seqlens is not None:  # a sequence starts without the state of the one before
        starts = cu_seqlens[:-1].long()
        gamma = gamma.index_fill(1, starts[starts < q.shape[1]], 0)
    h_kk = q.new_zeros(q.shape[0], *q.shape[2:], q.shape[3])
    residuals = []
    with without_autocast(q):
        for part in zip(*(x.split(BLOCK, 1) for x in (q, k, gamma, beta)), strict=True):
            matrices = []
            for key, forget, strength in zip(*(x.unbind(1) for x in part[1:]), strict=True):
                h_kk = write(h_kk, key, key, forget, strength)
                matrices.append(h_kk)
            residuals.append(_relative(torch.stack(matrices, 1), lamb, part[0], cg_steps))
    return torch.cat(residuals, 2)


def _relative(h_kk: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Tensor:
    """‖b − (H + Λ)·x‖ / ‖b‖ of all iterates x: H [..., H, K, K], lamb [H, K], b [..., H, K] -> [steps + 1, ..., H]."""
    left = [
        (b - lamb * x - (h_kk @ x[..., None])[..., 0]).norm(dim=-1) for x in iterates(h_kk, lamb, b, steps)
    ]
    return torch.stack(left) / b.norm(dim=-1).clamp_min(torch.finfo(b.dtype).tiny)
