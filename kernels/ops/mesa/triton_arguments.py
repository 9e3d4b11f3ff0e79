"""Tuples of the tensors that the steps of the mesa layer pass on; the steps' order is in triton_ops.py."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tokens(NamedTuple):
    """The tensors that states are written with, contiguous: k [B, T, H, K], v [B, T, H, V]; g, beta [B, T, H]."""

    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class States(NamedTuple):
    """H and G, or their gradients: [rows, H, K, K] and [rows, H, K, V], rows being chunks or sequences."""

    h_kk: Tensor | None
    h_kv: Tensor | None


class Precisions(NamedTuple):
    """The precision of matrix products.

    systems  in the states before chunks and in the solver, as `product` in triton_tiles takes it
    others   everywhere else, as `tl.dot` takes it
    """

    systems: str
    others: str
