"""Streams that pass from layer to layer in fewer dimensions: the factorised streams of SHC."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.dispatch import without_autocast
from zoo.errors import UserError
from zoo.interfaces import Dims
from zoo.modules import fp32_linear
from zoo.residuals.hyper_connections import HyperStreams, patterns


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
