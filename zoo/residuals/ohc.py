"""`ohc`: orthogonal hyper-connections, with streams mixed by rotations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import kernels
from kernels.ops.cayley import rotation_4
from zoo.interfaces import Dims
from zoo.options import added, at_least, one_of, positive
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import CappedConfig, CappedResidual, HyperResidual, MatrixResidual


@dataclass
class OHCConfig(CappedConfig):
    """cayley_scale: factor of A before the Cayley map; inverse: how I + A is inverted, "exact" or "neumann", a series
    that gives no exact rotation and diverges where ‖A‖ reaches 1; neumann_terms: highest power of that series, better
    an even one.

    The rest as in CappedConfig and HyperConfig.
    """

    cayley_scale: float = added(1.0, before=1.0)
    inverse: str = added("exact", before="exact")
    neumann_terms: int = added(8, before=8)


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

    inverse="neumann" sums Σ (−A)^k over k = 0 … K in place of (I + A)⁻¹: H_res is off a rotation by ‖A‖^(K+1)
    (kernels.cayley has the errors). Nothing keeps ‖A‖ below 1 but `gain`, and b_res not even that.
    """

    config: OHCConfig

    def __init__(self, config: OHCConfig, dims: Dims) -> None:
        positive(config.cayley_scale, "ohc.cayley_scale")
        one_of(config.inverse, ("exact", "neumann"), "ohc.inverse")
        at_least(config.neumann_terms, 1, "ohc.neumann_terms")
        super().__init__(config, dims)
        self.terms = config.neumann_terms if config.inverse == "neumann" else None

    def project(self, raw: Tensor) -> Tensor:
        """Matrices [..., n, n] -> rotations, or nearly."""
        return kernels.cayley(self._scaled(raw), neumann_terms=self.terms, backend=self.dims.backend)

    def step_mixing(self, raw: list[float]) -> list[float]:
        """`mixing` of one token; of four streams by the closed form, on numbers."""
        if self.config.n_streams != 4 or self.terms is not None:
            return super().step_mixing(raw)
        return rotation_4([self.config.cayley_scale * y for y in raw])

    def sensitivity(self) -> Tensor:
        """√2·c·‖skew φ_res‖_F, times `series_slope` of a Neumann series.

        dH_res = −2(I + A)⁻¹dA(I + A)⁻¹ with ‖(I + A)⁻¹‖ ≤ 1, and singular values of a skew dA come in pairs, so that
        ‖dA‖₂ ≤ ‖dA‖_F/√2 ≤ |mα₂|·c·‖skew φ_res‖_F·‖dx̂‖/√2. A series has no such (I + A)⁻¹: its slope grows with ‖A‖,
        which with ‖x̂‖ ≤ √(nD) is at most c·(|mα₂|·‖skew φ_res‖_F·√(nD) + ‖skew b_res‖_F)/√2, the first part of it at
        most g/2 under a cap of g.
        """
        n = self.config.n_streams
        exact = self._slope() * _skew_norm(self.phi_res.unflatten(0, (n, n)))
        if self.terms is None:
            return exact
        varying = HyperResidual.scale(self)[2].abs() * exact * self.phi_res.shape[1] ** 0.5 / 2
        if self.config.gain is not None:
            varying = varying.clamp(max=self.config.gain / 2)
        fixed = self.config.cayley_scale * _skew_norm(self.b_res) / math.sqrt(2)
        return exact * series_slope(varying + fixed, self.terms)

    def cap(self) -> tuple[float, float] | None:
        """The gain and √2·c: of rotations the operation itself caps the scale; of a series `scale` does."""
        gain = self.config.gain
        return None if gain is None or self.terms is not None else (gain, self._slope())

    def _slope(self) -> float:
        return math.sqrt(2) * self.config.cayley_scale

    def _scaled(self, raw: Tensor) -> Tensor:
        scale = self.config.cayley_scale
        return raw if scale == 1 else scale * raw


def series_slope(norm: Tensor, terms: int) -> Tensor:
    """Σ_{k=1…K} kθ^(k−1) + (K + 1)θ^K/2 for θ = ‖A‖ []: the most that ‖dQ_K‖₂ is, over 2‖dA‖₂.

    Q_K = (I − A)·Σ (−A)^k = I + 2·Σ_{k=1…K} (−A)^k + (−A)^(K+1), and ‖d(A^k)‖ ≤ k‖A‖^(k−1)·‖dA‖. An exact inverse
    has at most 1 at any ‖A‖; this is 1 at A = 0.
    """
    slopes = [k * norm ** (k - 1) for k in range(1, terms + 1)]
    return sum(slopes) + (terms + 1) / 2 * norm**terms


def _skew_norm(x: Tensor) -> Tensor:
    """‖(x − xᵀ)/2‖_F of x [n, n, ...], transposed over the first two dimensions; []."""
    return torch.linalg.vector_norm((x - x.transpose(0, 1)) / 2)
