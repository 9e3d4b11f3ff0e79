"""What the steps of the mesa layer's kernels hand each other, in packs: see triton_ops.py for their order."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tokens(NamedTuple):
    """What the states are written with, contiguous: k [B, T, H, K], v [B, T, H, V]; g, beta [B, T, H]."""

    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class States(NamedTuple):
    """H and G, or their gradients: [rows, H, K, K] and [rows, H, K, V], rows being chunks or sequences."""

    h_kk: Tensor | None
    h_kv: Tensor | None


class Precisions(NamedTuple):
    """Of matrix products, as Triton names them: in the solver, and everywhere else."""

    solver: str
    others: str
