"""Sinkhorn-Knopp normalisation: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.sinkhorn.reference import sinkhorn_reference
from kernels.ops.sinkhorn.torch_ops import sinkhorn_torch
from kernels.stream_checks import check_matrices, refuses_streams
from kernels.triton_common import lazily

__all__ = ["sinkhorn"]


def _refuses(raw: Tensor, **_options) -> str | None:
    return refuses_streams(raw.shape[-1], raw)


OPERATION = Operation("sinkhorn")
OPERATION.register(
    "triton",
    lazily("kernels.ops.sinkhorn.triton_ops", "sinkhorn_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", sinkhorn_torch, suits=always)
OPERATION.register("reference", sinkhorn_reference, suits=only_when_named)


def sinkhorn(raw: Tensor, *, iters: int = 20, backend: str = "auto") -> Tensor:
    """Make nearly doubly stochastic matrices of arbitrary ones.

        M = exp(raw);   iters times:   M_ij ← M_ij / Σ_i M_ij  (columns),   M_ij ← M_ij / Σ_j M_ij  (rows)

    raw      [..., n, n], any floating dtype
    iters    how often columns and then rows are normalised
    backend  auto, triton (what auto takes on a GPU; n ≤ 8), torch (both in log space: any
             finite raw), reference (as written above)
    returns  [..., n, n] in at least fp32, entries ≥ 0. Rows sum to 1; columns only nearly, as rows come last:
             after 20 iterations the worst of 200,000 4×4 matrices is off by some 2e-3 to 4e-3 at raw of standard
             deviation 1 and by 6e-2 at 3, the median by 3e-13 and 2e-4

    The gradient is that of the iterations, not of their limit.
    Raises ValueError for a shape that is not [..., n, n], iters < 1 and an unknown backend.
    Source: Sinkhorn & Knopp 1967; mHC (arXiv:2512.24880), equation 9.
    """
    check_matrices("sinkhorn", raw)
    if iters < 1:
        raise ValueError(f"sinkhorn needs iters ≥ 1, got {iters}")
    return OPERATION(raw, iters=iters, backend=backend)
