"""`shc`: sparse selective hyper-connections, with streams mixed by mixtures of a few learned rotations."""

import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.interfaces import Dims
from zoo.modules import fp32_linear
from zoo.modules.derived import Derived
from zoo.options import at_least
from zoo.registry import register_residual
from zoo.residuals.factorised_streams import FactorisedStreams
from zoo.residuals.path_gain import CappedConfig, CappedResidual

START_STD = 0.01


@dataclass
class SHCConfig(CappedConfig):
    """k: rotations in the mixture; factorise: vectors a token that are carried between layers instead of n (0:
    all n, as they are).

    The rest as in CappedConfig and HyperConfig.
    """

    k: int = 2
    factorise: int = 0


@register_residual(
    "shc",
    config=SHCConfig,
    title="SHC",
    family="hyper-connections",
    color="#117733",
    source="the SHC document",
)
class SHC(CappedResidual):
    """H_res = Σ_i softmax_i(mα₂·x̂W_α)·Q_i, Q_i = Cayley(A_i) for k learned A_i, the same for all tokens.

    A_i starts at 0.01·randn, each its own: equal ones would get equal gradients and never part. W_α (here
    phi_res) starts at 0. No singular value exceeds 1, of products neither; all may shrink towards 0, as the
    mean of two rotations contracts. Everything else as in zoo.residuals.hyper_connections.
    """

    streams = FactorisedStreams

    def __init__(self, config: SHCConfig, dims: Dims) -> None:
        at_least(config.k, 1, "shc.k")
        super().__init__(config, dims, config.k)
        self.turns = nn.Parameter(torch.zeros(config.k, config.n_streams, config.n_streams))
        self._entries = Derived()

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the A_i with std 0.01."""
        nn.init.normal_(self.turns, std=START_STD, generator=generator)

    def mixing(self, raw: Tensor) -> Tensor:
        """Scores [..., k] -> H_res [..., n, n], the mixture of k rotations."""
        rotations = kernels.cayley(self.turns, backend=self.dims.backend)
        return fp32_linear(raw.softmax(-1), rotations.flatten(1).T).unflatten(-1, rotations.shape[1:])

    def sensitivity(self) -> Tensor:
        """‖W_α − its mean row‖_F/√2.

        ‖Σ_i ds_i·Q_i‖₂ ≤ Σ_i |ds_i| for the shares s of the softmax; with ds_i = s_i·(dl_i − Σ_j s_j·dl_j) this is at
        most half the range of dl, which is at most ‖dl − mean dl‖/√2.
        """
        centred = self.phi_res - self.phi_res.mean(0)
        return torch.linalg.vector_norm(centred) / math.sqrt(2)

    def step_mixing(self, raw: list[float]) -> list[float]:
        """`mixing` of one token, on numbers; the rotations are computed once for many tokens."""
        shares = [math.exp(score - max(raw)) for score in raw]
        entries = self._entries(self._rotation_entries, self.turns)
        return [sum(map(operator.mul, shares, entry)) / sum(shares) for entry in entries]

    def _rotation_entries(self) -> list[list[float]]:
        """The entries of Q_1 … Q_k at each of the n² places."""
        return kernels.cayley(self.turns, backend=self.dims.backend).flatten(1).T.tolist()
