"""One token of the mesa layer in plain PyTorch: its matrix is formed, and a step of the solver is few operations.

The solver is not replaced by a direct solve: where `cg_steps` do not reach the solution, a decoded token still has to
be what training computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.mesa.reference import with_symmetric_part

State = tuple[Tensor, Tensor]

CHECK_EVERY = 4
"""Steps of the conjugate gradient between two looks at whether it has converged."""


def mesa_torch_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, cg_steps: int, state: State
) -> tuple[Tensor, State]:
    """Compute `kernels.mesa` of T = 1 tokens from a state, without gradient, and the state after it.

    q, k [B, 1, H, K], v [B, 1, H, V], g, beta [B, 1, H], lamb [H, K], state (H [B, H, K, K], G [B, H, K, V]). Returns
    o [B, 1, H, V] in q's dtype and the new (H, G).
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        one, key, value = (x[:, 0].to(wide) for x in (q, k, v))
        gamma, write = (
            g[:, 0].to(wide).exp()[..., None, None],
            (beta[:, 0].to(wide)[..., None] * key)[..., None],
        )
        h_kk, h_kv = (x.to(wide) for x in with_symmetric_part(state))
        h_kk = torch.addcmul(gamma * h_kk, write, key.unsqueeze(-2))
        h_kv = torch.addcmul(gamma * h_kv, write, value.unsqueeze(-2))
        x = conjugate_gradient(h_kk, lamb.to(wide), one, cg_steps)
        o = (x.unsqueeze(-2) @ h_kv).transpose(1, 2)
    return o.to(q.dtype), (h_kk, h_kv)


def conjugate_gradient(h: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Tensor:
    """Take at most `steps` steps towards (H + Λ)⁻¹·b: H [B, H, K, K], Λ's diagonal [H, K], b [B, H, K].

    Preconditioned by Λ: the conjugate gradient of Λ^(−1/2)·H·Λ^(−1/2) + I.
    It ends where every residual is a hundredth of the rounding error, from where on steps change nothing.
    """
    tiny = torch.finfo(b.dtype).tiny
    root = torch.rsqrt(lamb).unsqueeze(-1)
    scaled = (h * root * root.mT).flatten(0, 1)
    scale = b.abs().amax(-1, keepdim=True).clamp_min_(tiny)
    r = (b / scale).unsqueeze(-1).mul_(root).flatten(0, 1)
    x, p, rr = torch.zeros_like(r), r.clone(), _square(r)
    enough = rr * (0.01 * torch.finfo(b.dtype).eps) ** 2
    for step in range(steps):
        if step % CHECK_EVERY == 0 and bool((rr <= enough).all()):
            break
        ap = torch.baddbmm(p, scaled, p)
        alpha = rr / torch.bmm(p.mT, ap).clamp_min_(tiny)
        x.addcmul_(alpha, p)
        r.addcmul_(alpha, ap, value=-1)
        rr, old = _square(r), rr
        p = torch.addcmul(r, rr / old, p)
    return x.view(*b.shape, 1).mul_(root).squeeze(-1).mul_(scale)


def _square(r: Tensor) -> Tensor:
    """‖r‖² [N, 1, 1] of columns [N, K, 1]; never 0, so that ratios of two of them are numbers."""
    return torch.bmm(r.mT, r).clamp_min_(torch.finfo(r.dtype).tiny)
