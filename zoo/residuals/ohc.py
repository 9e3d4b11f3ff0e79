"""`ohc`: orthogonal hyper-connections, with streams mixed by rotations."""

from __future__ import annotations

from torch import Tensor

import kernels
from kernels.ops.cayley.torch_ops import rotation_4
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import HyperConfig, MatrixResidual


@register_residual(
    "ohc",
    config=HyperConfig,
    title="oHC (Cayley)",
    family="hyper-connections",
    color="#44AA99",
    source="the OrthGSA document",
)
class OHC(MatrixResidual):
    """H_res = Cayley(mα₂·mat(x̂φ_res) + b_res) = (I − A)(I + A)⁻¹, A the skew part: H_resᵀH_res = I.

    b_res = 0 at first, where Cayley is the identity. Of φ_res and b_res only skew parts matter: n(n−1)/2 free
    numbers a token. Everything else as in zoo.residuals.hyper_connections.
    """

    def project(self, raw: Tensor) -> Tensor:
        """Matrices [..., n, n] -> rotations."""
        return kernels.cayley(raw, backend=self.dims.backend)

    def step_mixing(self, raw: list[float]) -> list[float]:
        """`mixing` of one token; of four streams by the closed form, on numbers."""
        return rotation_4(raw) if self.config.n_streams == 4 else super().step_mixing(raw)
