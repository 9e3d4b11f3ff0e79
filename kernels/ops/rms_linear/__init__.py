"""A linear map of normalised vectors: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, not_unasked
from kernels.launch import lazily, on_cuda, refusal
from kernels.ops.rms_linear.reference import rms_linear_reference
from kernels.ops.rms_linear.torch_ops import rms_linear_torch

__all__ = ["rms_linear"]


def _refuses(x: Tensor, weight: Tensor, **_options) -> str | None:
    return refusal(x, weight, widths=(len(weight),))


OPERATION = Operation("rms_linear")
OPERATION.register(
    "triton",
    lazily("kernels.ops.rms_linear.triton_ops", "rms_linear_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", rms_linear_torch, suits=always)
OPERATION.register("reference", rms_linear_reference, suits=not_unasked)


def rms_linear(x: Tensor, weight: Tensor, *, eps: float = 1e-6, backend: str = "auto") -> Tensor:
    """A linear map of x normalised by its root mean square, without a gain.

        y = W·x · (mean(x²) + eps)^(−1/2)

    x        [..., K], any floating dtype
    weight   [N, K]
    backend  auto, triton (what auto takes on a GPU; N ≤ 256), torch (scales the product, so that the
             normalised x is never written, as triton does), reference
    returns  [..., N] in at least fp32, whatever autocast says

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: mHC (arXiv:2512.24880), its section on fused kernels, which divides after the product too.
    """
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"rms_linear needs x [..., K] and weight [N, K], got {tuple(x.shape)}, {tuple(weight.shape)}"
        )
    return OPERATION(x, weight, eps=eps, backend=backend)
