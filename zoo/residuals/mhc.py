"""`mhc`: manifold-constrained hyper-connections, with streams mixed by nearly doubly stochastic matrices."""

from dataclasses import dataclass

from torch import Tensor

import kernels
from zoo.interfaces import Dims
from zoo.options import at_least
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import HyperConfig, MatrixResidual


@dataclass
class MHCConfig(HyperConfig):
    """iters: Sinkhorn-Knopp iterations, each over columns and then rows.

    The rest as in HyperConfig.
    """

    iters: int = 20


@register_residual(
    "mhc",
    config=MHCConfig,
    title="mHC (Sinkhorn)",
    family="hyper-connections",
    color="#88CCEE",
    source="mHC (arXiv:2512.24880), equations 7 to 9",
)
class MHC(MatrixResidual):
    """H_res = Sinkhorn(mα₂·mat(x̂φ_res) + b_res): entries ≥ 0, rows sum to 1, columns nearly.

    b_res = 4·I at first: exp never reaches the identity, and this has 0.948 on the diagonal. While all
    streams are equal, as before the first sub-block, H_res changes nothing, and neither it nor its parameters
    have a gradient. Everything else as in zoo.residuals.hyper_connections.
    """

    start = 4.0

    def __init__(self, config: MHCConfig, dims: Dims) -> None:
        super().__init__(config, dims)
        at_least(config.iters, 1, "mhc.iters")
        self.iters = config.iters

    def project(self, raw: Tensor) -> Tensor:
        """Matrices [..., n, n] -> nearly doubly stochastic ones."""
        return kernels.sinkhorn(raw, iters=self.iters, backend=self.dims.backend)
