"""The Cayley transform, which makes rotations: the public function, its definition and PyTorch's form.

A = (raw − rawᵀ) / 2,     Q = (I − A)·(I + A)⁻¹
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named, without_autocast
from kernels.streams import check_matrices, refuses_streams
from kernels.triton_common import lazily
from kernels.triton_common.tiles import Work, nbytes

# The definition: one linear solve, or the powers of a Neumann series.


def cayley_reference(raw: Tensor, neumann_terms: int | None = None) -> Tensor:
    """Solve Q·(I + A) = I − A for Q, A = (raw − rawᵀ) / 2; or return (I − A)·Σ (−A)^k over k = 0 … K.

    raw [..., n, n] -> Q [..., n, n] in at least fp32; neumann_terms K ≥ 1, or None for the solve.
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    a = (raw - raw.mT) / 2
    if neumann_terms is None:
        return torch.linalg.solve(eye + a, eye - a, left=False)
    with without_autocast(raw):
        return (eye - a) @ sum(torch.linalg.matrix_power(-a, k) for k in range(neumann_terms + 1))


# Without a solve where n = 1, 2 or 4, and with a gradient that needs only the result.

Number = TypeVar("Number", float, Tensor)


def cayley_torch(raw: Tensor, neumann_terms: int | None = None) -> Tensor:
    """Compute `kernels.cayley`; saves Q alone for the backward, or of a series its partial sums.

    raw [..., n, n], any floating dtype -> Q [..., n, n] in at least fp32.
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    return _Cayley.apply(raw) if neumann_terms is None else _series(raw, neumann_terms)


def _series(raw: Tensor, terms: int) -> Tensor:
    """(I − A)·S_K, by Horner's rule: S_0 = I, S_k = I − A·S_{k−1}."""
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    with without_autocast(raw):
        a = (raw - raw.mT) / 2
        total = eye - a
        for _ in range(terms - 1):
            total = eye - a @ total
        return total - a @ total


class _Cayley(torch.autograd.Function):
    """Q, and dL/draw = ¼·(X − Xᵀ)ᵀ with X = (Q + I)ᵀ·G·(Q + I)ᵀ, as (I + A)⁻¹ = (Q + I) / 2."""

    @staticmethod
    def forward(ctx, raw: Tensor) -> Tensor:
        q = CLOSED_FORMS.get(raw.shape[-1], cayley_reference)(raw)
        ctx.save_for_backward(q)
        return q

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (q,) = ctx.saved_tensors
        with without_autocast(q):
            c = (q + torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)).mT
            x = c @ grad @ c
        return (x.mT - x) / 4


def _cayley_1(raw: Tensor) -> Tensor:
    return torch.ones_like(raw)


def _cayley_2(raw: Tensor) -> Tensor:
    """A rotation by 2·arctan a: [[1 − a², −2a], [2a, 1 − a²]] / (1 + a²)."""
    a = (raw[..., 0, 1] - raw[..., 1, 0]) / 2
    t = 2 / (1 + a * a)
    return torch.stack([t - 1, -t * a, t * a, t - 1], -1).view(raw.shape)


def _cayley_4(raw: Tensor) -> Tensor:
    """`rotation_4` of the 16 entries as planes of their own, which is what vector units want."""
    planes = rotation_4(raw.reshape(-1, 16).t().contiguous().unbind(0))
    return torch.stack(planes).t().contiguous().view(raw.shape)


def rotation_4(x: Sequence[Number]) -> list[Number]:
    """The 16 entries of Cayley(x) from those of x, row by row, tensors or Python's numbers.

    The closed form over the six entries of A's upper triangle, a … f row by row.

    With pf = af − be + cd (the Pfaffian), s = a² + … + f² (half the squared norm) and A* the dual of A (a and
    f, b and −e, c and d exchanged), A⁴ + sA² + pf²·I = 0 and A³ = −sA + pf·A* turn the inverse into

        (I + A)⁻¹ = [(1 + s)·I + A² − A − pf·A*] / (1 + s + pf²),     Q = 2·(I + A)⁻¹ − I

    whose diagonal is a sum of squares: nothing cancels, however large A is.
    """
    a, b, c, d, e, f = ((x[i] - x[j]) / 2 for i, j in ((1, 4), (2, 8), (3, 12), (6, 9), (7, 13), (11, 14)))
    pf = a * f - b * e + c * d
    aa, bb, cc, dd, ee, ff = (y * y for y in (a, b, c, d, e, f))
    t = 2 / (1 + aa + bb + cc + dd + ee + ff + pf * pf)

    def mirrored(symmetric: Number, skew: Number) -> tuple[Number, Number]:
        return t * (symmetric - skew), t * (symmetric + skew)

    q01, q10 = mirrored(-b * d - c * e, a + pf * f)
    q02, q20 = mirrored(a * d - c * f, b - pf * e)
    q03, q30 = mirrored(a * e + b * f, c + pf * d)
    q12, q21 = mirrored(-a * b - e * f, d + pf * c)
    q13, q31 = mirrored(d * f - a * c, e - pf * b)
    q23, q32 = mirrored(-b * c - d * e, f + pf * a)
    q00, q11 = t * (1 + dd + ee + ff) - 1, t * (1 + bb + cc + ff) - 1
    q22, q33 = t * (1 + aa + cc + ee) - 1, t * (1 + aa + bb + dd) - 1
    return [q00, q01, q02, q03, q10, q11, q12, q13, q20, q21, q22, q23, q30, q31, q32, q33]


CLOSED_FORMS = {1: _cayley_1, 2: _cayley_2, 4: _cayley_4}


# The public function and its backends.

__all__ = ["cayley"]


def _refuses(raw: Tensor, neumann_terms: int | None = None) -> str | None:
    if neumann_terms is not None:
        return "inverts exactly, without a Neumann series"
    return refuses_streams(raw.shape[-1], raw)


OPERATION = Operation("cayley")
OPERATION.register(
    "triton",
    lazily("kernels.ops.cayley_triton", "cayley_triton"),
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


# Operations and bytes, for a roofline.


def work(raw: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: a solve with n right sides, (8/3)·n³; backward two products, 4·n³.

    raw [..., n, n] of any dtype, may be on the meta device.
    """
    cubes = raw.numel() * raw.shape[-1]
    out = 4 * raw.numel()
    return [
        Work("cayley", "forward", cubes * 8 / 3, nbytes(raw) + out),
        Work("cayley", "backward", 4 * cubes, nbytes(raw) + 2 * out),
    ]
