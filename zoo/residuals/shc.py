"""`shc`: sparse selective hyper-connections, with streams mixed by mixtures of a few learned rotations."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.dispatch import without_autocast
from zoo.errors import UserError
from zoo.interfaces import Dims
from zoo.modules import fp32_linear
from zoo.modules.layers import Derived
from zoo.options import at_least
from zoo.registry import register_residual
from zoo.residuals.hyper_connections import CappedConfig, CappedResidual, HyperStreams, patterns, placed

# Factorised streams, which pass from layer to layer in fewer dimensions.


class FactorisedStreams(HyperStreams):
    """From layer to layer goes s = Uᵀx [B, T, r, D] in place of x [B, T, n, D]; a layer starts from x = U·s.

    So r vectors a token are kept for the backward of a layer, which computes the n streams inside it again
    (zoo.recompute): x = U·s, and after the first sub-block H_res·x + H_postᵀ·z.

    U [n, r] is orthonormal, its first column 1/√n, so that the mean stream passes unchanged. The others are
    learned: the harmonics over the streams (the first of them p, along which the streams differ at
    initialisation), turned by a Cayley rotation that starts at the identity. With r = n nothing is lost;
    r = 0 turns it off.

    It shrinks the streams, not attention caches: keys and values come from the one vector that a mixer reads.
    """

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__(config, dims)
        self.r, self.backend = config.factorise, dims.backend
        if not 0 <= self.r <= self.n:
            raise UserError(f"shc.factorise={self.r} must lie between 0 (off) and n_streams={self.n}")
        self.turn = nn.Parameter(torch.zeros(self.n - 1, self.n - 1)) if 1 < self.r < self.n else None
        self.register_buffer("harmonics", harmonics(self.n), persistent=False)

    def restore(self) -> None:
        """Compute the buffer that is not saved."""
        self.harmonics.copy_(harmonics(self.n))

    def basis(self) -> Tensor:
        """U [n, r]."""
        turned = self.harmonics[:, 1:]
        if self.turn is not None:
            turned = fp32_linear(turned, kernels.cayley(self.turn, backend=self.backend).mT)
        return torch.cat([self.harmonics[:, :1], turned], 1)[:, : self.r]

    def pack(self, x: Tensor) -> Tensor:
        """Streams [B, T, n, D] -> s = Uᵀx [B, T, r, D]; x itself where factorisation is off."""
        return _product(self.basis().mT, x) if self.r else x

    def unpack(self, s: Tensor) -> Tensor:
        """s [B, T, r, D] -> streams U·s [B, T, n, D]; s itself where factorisation is off."""
        return _product(self.basis(), s) if self.r else s

    def carried(self) -> int:
        """r, or n where factorisation is off."""
        return self.r or self.n


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix [m, n] times every token's x [B, T, n, D], in at least fp32 -> [B, T, m, D] in x's dtype.

    As a batch: `matrix @ x` would fold tokens and channels into one dimension, in a copy of x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        return (matrix.to(wide).expand(*x.shape[:-2], *matrix.shape) @ x.to(wide)).to(x.dtype)


def harmonics(n: int) -> Tensor:
    """An orthonormal basis of R^n, [n, n]: columns 1/√n, p, q, then the waves of higher frequency."""
    columns = [torch.ones(n, device="cpu")]
    for frequency in range(1, n // 2 + 1):
        columns += patterns(n, frequency)[: 1 if 2 * frequency == n else 2]
    return placed(torch.stack([column / column.norm() for column in columns], 1))


def retained(x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The share of x [..., n, D] that U·Uᵀ retains: (energy ‖UUᵀx‖²/‖x‖², relative error ‖x − UUᵀx‖/‖x‖), scalars.

    An energy of 0.99 is a relative error of 0.1: "99 % reconstruction" can mean either.
    """
    kept = basis @ (basis.mT @ x)
    return (kept.norm() / x.norm()).square(), (x - kept).norm() / x.norm()


# The scheme.

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
