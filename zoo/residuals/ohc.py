"""`ohc`: orthogonal hyper-connections, with streams mixed by rotations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import kernels
from kernels.ops.cayley.torch_ops import rotation_4
from zoo.interfaces import Dims
from zoo.option_checks import positive
from zoo.options import added
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import MatrixResidual
from zoo.residuals.path_gain import CappedConfig, CappedResidual


@dataclass
class OHCConfig(CappedConfig):
    """cayley_scale: factor of A before the Cayley map; the rest as in CappedConfig and HyperConfig."""

    cayley_scale: float = added(1.0, before=1.0)


@register_residual(
    "ohc",
    config=OHCConfig,
    title="oHC (Cayley)",
    family="hyper-connections",
    color="#44AA99",
    source="the OrthGSA document",
)
class OHC(MatrixResidual, CappedResidual):
    """H_res = Cayley(c·mα₂·mat(x̂φ_res) + c·b_res) = (I − A)(I + A)⁻¹, A the skew part: H_resᵀH_res = I.

    b_res = 0 at first, where Cayley is the identity; c is `cayley_scale`. Of φ_res and b_res only skew parts matter:
    n(n−1)/2 free numbers a token. Everything else as in zoo.residuals.hyper_connections.
    """

    config: OHCConfig

    def __init__(self, config: OHCConfig, dims: Dims) -> None:
        positive(config.cayley_scale, "ohc.cayley_scale")
        super().__init__(config, dims)

    def project(self, raw: Tensor) -> Tensor:
        """Matrices [..., n, n] -> rotations."""
        return kernels.cayley(self._scaled(raw), backend=self.dims.backend)

    def step_mixing(self, raw: list[float]) -> list[float]:
        """`mixing` of one token; of four streams by the closed form, on numbers."""
        if self.config.n_streams != 4:
            return super().step_mixing(raw)
        return rotation_4([self.config.cayley_scale * y for y in raw])

    def sensitivity(self) -> Tensor:
        """√2·c·‖skew φ_res‖_F.

        dH_res = −2(I + A)⁻¹dA(I + A)⁻¹ with ‖(I + A)⁻¹‖ ≤ 1, and singular values of a skew dA come in pairs, so that
        ‖dA‖₂ ≤ ‖dA‖_F/√2 ≤ |mα₂|·c·‖skew φ_res‖_F·‖dx̂‖/√2.
        """
        n = self.config.n_streams
        phi = self.phi_res.unflatten(0, (n, n))
        skew = torch.linalg.vector_norm((phi - phi.transpose(0, 1)) / 2)
        return math.sqrt(2) * self.config.cayley_scale * skew

    def _scaled(self, raw: Tensor) -> Tensor:
        scale = self.config.cayley_scale
        return raw if scale == 1 else scale * raw
