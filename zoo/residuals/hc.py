"""`hc`: hyper-connections, with streams mixed by unconstrained matrices."""

from __future__ import annotations

from torch import Tensor

from zoo.registry import register_residual
from zoo.residuals.hyper_connections import HyperConfig, MatrixResidual


@register_residual(
    "hc",
    config=HyperConfig,
    title="Hyper-connections",
    family="hyper-connections",
    color="#CC6677",
    source="Hyper-connections (arXiv:2409.19606), with the coefficients of mHC",
)
class HC(MatrixResidual):
    """H_res = mα₂·mat(x̂φ_res) + b_res, b_res = I at first: nothing bounds its powers, so deep models may diverge.

    Everything else as in zoo.residuals.hyper_connections.
    """

    start = 1.0

    def project(self, raw: Tensor) -> Tensor:
        """The matrices [..., n, n] as they are."""
        return raw
