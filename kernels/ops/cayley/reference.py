"""The Cayley transform by its definition: one linear solve."""

from __future__ import annotations

import torch
from torch import Tensor


def cayley_reference(raw: Tensor) -> Tensor:
    """Solve Q·(I + A) = I − A for Q, A = (raw − rawᵀ) / 2."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    a = (raw - raw.mT) / 2
    return torch.linalg.solve(eye + a, eye - a, left=False)
