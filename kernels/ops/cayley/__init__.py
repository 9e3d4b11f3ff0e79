"""The Cayley transform: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.cayley.reference import cayley_reference
from kernels.ops.cayley.torch_ops import cayley_torch
from kernels.stream_checks import check_matrices, refuses_streams
from kernels.triton_common import lazily

__all__ = ["cayley"]


def _refuses(raw: Tensor, neumann_terms: int | None = None) -> str | None:
    if neumann_terms is not None:
        return "inverts exactly, without a Neumann series"
    return refuses_streams(raw.shape[-1], raw)


OPERATION = Operation("cayley")
OPERATION.register(
    "triton",
    lazily("kernels.ops.cayley.triton_ops", "cayley_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", cayley_torch, suits=always)
OPERATION.register("reference", cayley_reference, suits=only_when_named)


def cayley(raw: Tensor, *, neumann_terms: int | None = None, backend: str = "auto") -> Tensor:
    """Make rotations of arbitrary matrices: the Cayley transform of their skew-symmetric part.

        A = (raw − rawᵀ) / 2,     Q = (I − A)·(I + A)⁻¹

    raw            [..., n, n], any floating dtype; only its skew part has an effect or a gradient
    neumann_terms  None, or K ≥ 1: (I + A)⁻¹ becomes the series Σ (−A)^k over k = 0 … K
    backend        auto, triton (what auto takes on a GPU; n ≤ 8, no series), torch (closed form for n ≤ 4
                   except 3, else a solve; the series by Horner's rule), reference (the solve, powers)
    returns        [..., n, n] in at least fp32: QᵀQ = I, det Q = 1, every singular value 1, cayley(0) = I, and no
                   eigenvalue −1, which no finite A reaches. In fp32 |raw| must stay below 1e9

    Gradient: dQ = −2·(I + A)⁻¹·dA·(I + A)⁻¹, that is vec dQ = −2·((I + A)⁻ᵀ ⊗ (I + A)⁻¹)·vec dA.

    The series has no rotation: with M = (−A)^(K+1) it is Q_K = Q·(I − M), and for ‖A‖ the spectral norm
        ‖Σ (−A)^k − (I + A)⁻¹‖ ≤ ‖A‖^(K+1), where a matrix that is not skew has ‖A‖^(K+1)/(1 − ‖A‖)
        ‖Q_K − Q‖ = ‖A‖^(K+1)
        ‖Q_KᵀQ_K − I‖ = ‖A‖^(2K+2) for an even K, else at most 2‖A‖^(K+1) + ‖A‖^(2K+2)
    so that an even K keeps lengths as well as an odd one of twice the size. It diverges for ‖A‖ ≥ 1.

    Raises ValueError for a shape that is not [..., n, n], K below 1, and a backend that is unknown or has no series.
    Source: Cayley 1846; Helfrich et al. 2018 (arXiv:1707.09520), equation 2; the series: the OrthGSA document.
    """
    check_matrices("cayley", raw)
    if neumann_terms is None:
        return OPERATION(raw, backend=backend)
    if neumann_terms < 1:
        raise ValueError(f"cayley needs neumann_terms of at least 1, got {neumann_terms}")
    return OPERATION(raw, neumann_terms=neumann_terms, backend=backend)
