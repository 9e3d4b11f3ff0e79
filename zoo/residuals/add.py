"""`add`: the plain residual, one stream."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.interfaces import Residual
from zoo.registry import register_residual


@register_residual("add", title="Plain residual", family="residual", color="#4D4D4D")
class Add(Residual):
    """x ← x + F(norm(x)), with x [B, T, D]."""

    def pre(self, x: Tensor) -> tuple[Tensor, None]:
        """x [B, T, D] itself, and no coefficients."""
        return x, None

    def post(self, x: Tensor, z: Tensor, coefficients: None) -> Tensor:
        """x + z, [B, T, D]."""
        return x + z

    def probe_values(self, coefficients: None) -> dict[str, Tensor]:
        """res [1, 1, 1, 1]: the one stream goes on as it is."""
        return {"res": torch.ones(1, 1, 1, 1)}
