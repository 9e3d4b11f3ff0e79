"""The Cayley transform: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, only_when_named
from kernels.ops.cayley.reference import cayley_reference
from kernels.ops.cayley.torch_ops import cayley_torch
from kernels.stream_checks import check_matrices, refuses_streams
from kernels.triton_common import lazily, on_cuda

__all__ = ["cayley"]


def _refuses(raw: Tensor, **_options) -> str | None:
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


def cayley(raw: Tensor, *, backend: str = "auto") -> Tensor:
    """Make rotations of arbitrary matrices: the Cayley transform of their skew-symmetric part.

        A = (raw − rawᵀ) / 2,     Q = (I − A)·(I + A)⁻¹

    raw      [..., n, n], any floating dtype; only its skew part has an effect or a gradient
    backend  auto, triton (what auto takes on a GPU; n ≤ 8), torch (closed form for n ≤ 4
             except 3, else a solve), reference (the solve)
    returns  [..., n, n] in at least fp32: QᵀQ = I, det Q = 1, every singular value 1, cayley(0) = I, and no
             eigenvalue −1, which no finite A reaches. In fp32 |raw| must stay below 1e9

    Gradient: dQ = −2·(I + A)⁻¹·dA·(I + A)⁻¹, that is vec dQ = −2·((I + A)⁻ᵀ ⊗ (I + A)⁻¹)·vec dA.
    Raises ValueError for a shape that is not [..., n, n], and for an unknown backend.
    Source: Cayley 1846; Helfrich et al. 2018 (arXiv:1707.09520), equation 2.
    """
    check_matrices("cayley", raw)
    return OPERATION(raw, backend=backend)
