"""`identity`: hyper-connections whose streams are read and written by content, and never mixed."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.interfaces import Dims
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import Coefficients, HyperConfig, HyperResidual


@register_residual(
    "identity",
    config=HyperConfig,
    title="H_res = I",
    family="hyper-connections",
    color="#DDCC77",
    source="the control of the OrthGSA document's H_res",
)
class Identity(HyperResidual):
    """H_res = I: x ← x + H_postᵀ·z. What another scheme gains over this one is due to its mixing.

    Everything else as in zoo.residuals.hyper_connections; α₂ has nothing to scale.
    """

    def __init__(self, config: HyperConfig, dims: Dims) -> None:
        super().__init__(config, dims, 0)

    def mixing(self, raw: Tensor) -> Tensor:
        """No numbers [..., 0] -> I [..., n, n]."""
        n = self.config.n_streams
        return torch.eye(n, dtype=raw.dtype, device=raw.device).expand(*raw.shape[:-1], n, n)

    def post(self, x: Tensor, z: Tensor, coefficients: Coefficients) -> Tensor:
        """x + H_postᵀ·z, [B, T, n, D]."""
        return (x + coefficients.post.unsqueeze(-1) * z.unsqueeze(-2)).to(x.dtype)
