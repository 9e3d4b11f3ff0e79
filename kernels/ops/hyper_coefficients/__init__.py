"""The coefficients of hyper-connections: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.hyper_coefficients.reference import hyper_coefficients_reference
from kernels.ops.hyper_coefficients.torch_ops import hyper_coefficients_torch
from kernels.stream_checks import check_streams
from kernels.triton_common import lazily, refusal

__all__ = ["hyper_coefficients"]


def _refuses(streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, **_options) -> str | None:
    return refusal(streams, phi, scale, bias, widths=(len(phi),))


OPERATION = Operation("hyper_coefficients")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_coefficients.triton_ops", "hyper_coefficients_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_coefficients_torch, suits=always)
OPERATION.register("reference", hyper_coefficients_reference, suits=only_when_named)


def hyper_coefficients(
    streams: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    eps: float = 1e-6,
    hand_on: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """Compute the coefficients by which every token reads its streams, writes to them, and mixes them.

        raw = φ·vec x · (mean(x²) + eps)^(−1/2)          in parts of n, n and m: pre, post, res
        h_pre = σ(s₀·raw_pre + b_pre),   h_post = 2σ(s₁·raw_post + b_post),   res = s₂·raw_res + b_res

    streams  [B, T, n, D], x; any floating dtype
    phi      [2n + m, n·D], m ≥ 0 (n² where a scheme's own map makes a matrix of res)
    scale    [3], s
    bias     [2n + m], b
    hand_on  return the streams too, fourth, for those who read them next: their gradient is then added to this one's
             as it is written (not by `reference`, nor by torch in 16 bit: there autograd adds them)
    backend  auto, triton (what auto takes on a GPU; 2n + m ≤ 256), torch (scales the product, so that the
             normalised x is never written, as triton does), reference
    returns  h_pre [B, T, n], h_post [B, T, n], res [B, T, m] in at least fp32, under autocast too

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: mHC (arXiv:2512.24880), equations 5 and 7, and its section on fused kernels, which divides after the
    product too.
    """
    n, width = streams.shape[-2:] if streams.dim() == 4 else (0, 0)
    rows = max(2 * n, len(phi))
    check_streams(
        "hyper_coefficients", streams, phi=(phi, (rows, n * width)), scale=(scale, (3,)), bias=(bias, (rows,))
    )
    return OPERATION(streams, phi, scale, bias, eps=eps, hand_on=hand_on, backend=backend)
