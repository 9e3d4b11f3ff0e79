"""Norms over the last axis, computed in at least fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6


class RMSNorm(nn.Module):
    """y = x · rsqrt(mean(x²) + 1e-6) ⊙ gain over the last axis, computed in at least fp32, returned in x's dtype.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> y [..., width]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), NORM_EPS).to(x.dtype)


def l2norm(x: Tensor) -> Tensor:
    """x · rsqrt(Σx² + 1e-6) over the last axis, computed in at least fp32, returned in x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + NORM_EPS)).to(x.dtype)
