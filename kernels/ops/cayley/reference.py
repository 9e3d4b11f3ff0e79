"""The Cayley transform by its definition: one linear solve, or the powers of a Neumann series."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast


def cayley_reference(raw: Tensor, neumann_terms: int | None = None) -> Tensor:
    """Solve Q·(I + A) = I − A for Q, A = (raw − rawᵀ) / 2; or return (I − A)·Σ (−A)^k over k = 0 … K.

    raw [..., n, n] -> Q [..., n, n] in at least fp32; neumann_terms K ≥ 1, or None for the solve.
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    a = (raw - raw.mT) / 2
    if neumann_terms is None:
        return torch.linalg.solve(eye + a, eye - a, left=False)
    with without_autocast(raw):
        return (eye - a) @ sum(torch.linalg.matrix_power(-a, k) for k in range(neumann_terms + 1))
