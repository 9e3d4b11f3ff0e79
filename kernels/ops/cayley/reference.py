"""The Cayley transform as its definition has it: one linear solve."""

from __future__ import annotations

import torch
from torch import Tensor


def cayley_reference(raw: Tensor) -> Tensor:
    """Q·(I + A) = I − A, solved for Q."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    a = (raw - raw.mT) / 2
    return torch.linalg.solve(eye + a, eye - a, left=False)
