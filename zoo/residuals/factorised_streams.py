"""Streams that pass from layer to layer in fewer dimensions: the factorised streams of SHC."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import kernels
from zoo.errors import UserError
from zoo.interfaces import Dims
from zoo.modules import fp32_linear
from zoo.residuals.hyper_connections import HyperStreams, patterns


class FactorisedStreams(HyperStreams):
    """Between layers x [B, T, n, D] becomes s = Uᵀx [B, T, r, D], and x = U·s again.

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

    def basis(self) -> Tensor:
        """U [n, r]."""
        turned = self.harmonics[:, 1:]
        if self.turn is not None:
            turned = fp32_linear(turned, kernels.cayley(self.turn, backend=self.backend).mT)
        return torch.cat([self.harmonics[:, :1], turned], 1)[:, : self.r]

    def between(self, x: Tensor) -> Tensor:
        """U·Uᵀ·x for x [B, T, n, D]; x itself where factorisation is off."""
        return self.unpack(self.pack(x)) if self.r else x

    def pack(self, x: Tensor) -> Tensor:
        """Streams [B, T, n, D] -> s = Uᵀx [B, T, r, D]."""
        return fp32_linear(x.mT, self.basis().mT).mT.to(x.dtype)

    def unpack(self, s: Tensor) -> Tensor:
        """s [B, T, r, D] -> streams U·s [B, T, n, D]."""
        return fp32_linear(s.mT, self.basis()).mT.to(s.dtype)

    def carried(self) -> int:
        """r, or n where factorisation is off."""
        return self.r or self.n


def harmonics(n: int) -> Tensor:
    """An orthonormal basis of R^n, [n, n]: columns 1/√n, p, q, then the waves of higher frequency."""
    columns = [torch.ones(n)]
    for frequency in range(1, n // 2 + 1):
        columns += patterns(n, frequency)[: 1 if 2 * frequency == n else 2]
    return torch.stack([column / column.norm() for column in columns], 1)


def retained(x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The share of x [..., n, D] that U·Uᵀ retains: (energy ‖UUᵀx‖²/‖x‖², relative error ‖x − UUᵀx‖/‖x‖), scalars.

    An energy of 0.99 is a relative error of 0.1: "99 % reconstruction" can mean either.
    """
    kept = basis @ (basis.mT @ x)
    return (kept.norm() / x.norm()).square(), (x - kept).norm() / x.norm()
