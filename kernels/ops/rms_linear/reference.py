"""A linear map of normalised vectors, as the definition has it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import without_autocast


def rms_linear_reference(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x̂ = x / √(mean(x²) + eps);   y = W·x̂."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, weight = x.to(wide), weight.to(wide)
    with without_autocast(x):
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)) @ weight.T
