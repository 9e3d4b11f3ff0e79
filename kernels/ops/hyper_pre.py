"""The weighted sum of streams that a sub-block reads: the public function, its definition and PyTorch's form.

y = Σ_i h_pre_i · x_i;   with a gain: y · (mean(y²) + eps)^(−1/2) ⊙ gain
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named, without_autocast
from kernels.streams import check_streams, refuses_streams, row_products, spread, weighted_sum
from kernels.triton_common import lazily
from kernels.triton_common.tiles import Work, nbytes

# The definition.


def hyper_pre_reference(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None, eps: float, hand_on: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Return y = Σ_i h_pre_i · x_i, or with a gain y · (mean(y²) + eps)^(−1/2) ⊙ gain.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None -> y [B, T, D] in the streams' dtype, computed in at
    least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    y = (h_pre.to(wide)[..., None] * streams.to(wide)).sum(-2)
    if gain is not None:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * gain.to(wide)
    y = y.to(streams.dtype)
    return (y, streams) if hand_on else y


# A gradient that passes over the streams once.


def hyper_pre_torch(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None, eps: float, hand_on: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute `kernels.hyper_pre`: a weighted sum of n rows a token, and PyTorch's norm of it.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None -> y [B, T, D] in the streams' dtype; with hand_on the
    streams too, second.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    with without_autocast(streams):
        y, handed = _Read.apply(streams.to(wide), h_pre.to(wide))
        if gain is not None:
            y = F.rms_norm(y, gain.shape, gain.to(wide), eps)
        y = y.to(streams.dtype)
    # Streams of half precision are handed on as they are, and autograd adds their gradients.
    return (y, handed if handed.dtype == streams.dtype else streams) if hand_on else y


class _Read(torch.autograd.Function):
    """y = Σ_i h_i·x_i, and x handed on;   x̄_i = h_i·ȳ, added to the gradient of x so far,   h̄_i = x_i·ȳ."""

    @staticmethod
    def forward(ctx, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, h)
        ctx.set_materialize_grads(False)
        return weighted_sum(h, x), x

    @staticmethod
    def backward(ctx, grad: Tensor | None, handed: Tensor | None):
        if grad is None:
            return handed, None
        x, h = ctx.saved_tensors
        with without_autocast(grad):
            return spread(h, grad, onto=handed), row_products(x, grad)


# The public function and its backends.

__all__ = ["hyper_pre"]


MAX_NORMED = 32_768
"""The most numbers of a token, n·D, that a Triton program holds at once to normalise their sum."""


def _refuses(streams: Tensor, h_pre: Tensor, *, gain: Tensor | None = None, **_options) -> str | None:
    numbers = streams.shape[-2] * streams.shape[-1]
    if gain is not None and numbers > MAX_NORMED:
        return f"normalises tokens of at most {MAX_NORMED} numbers n·D, got {numbers}"
    return refuses_streams(streams.shape[-2], streams, h_pre, gain)


OPERATION = Operation("hyper_pre")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_pre_triton", "hyper_pre_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_pre_torch, suits=always)
OPERATION.register("reference", hyper_pre_reference, suits=only_when_named)


def hyper_pre(
    streams: Tensor,
    h_pre: Tensor,
    *,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    hand_on: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the weighted sum of the streams that a sub-block reads, by option after its RMSNorm.

        y = Σ_i h_pre_i · x_i;   with a gain: y · (mean(y²) + eps)^(−1/2) ⊙ gain

    streams  [B, T, n, D], x; any floating dtype
    h_pre    [B, T, n] coefficients of every token
    gain     [D] of the norm between this sum and the sub-block; None: no norm. Fused, y itself is neither written
             nor saved
    eps      of the norm
    hand_on  return the streams too, for those who read them next: their gradient is then added to this one's as it
             is written (not by `reference`, nor by torch in 16 bit: there autograd adds them)
    backend  auto, triton (what auto takes on a GPU; at most 8 streams, with a gain n·D of at most 32,768), torch,
             reference
    returns  [B, T, D] in the streams' dtype, computed in at least fp32, under autocast too; with hand_on a pair

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: hyper-connections (arXiv:2409.19606), equation 3; mHC (arXiv:2512.24880), equation 3.
    """
    wanted = {} if gain is None else {"gain": (gain, streams.shape[-1:])}
    check_streams("hyper_pre", streams, h_pre=(h_pre, streams.shape[:-1]), **wanted)
    return OPERATION(streams, h_pre, gain=gain, eps=eps, hand_on=hand_on, backend=backend)


# Operations and bytes, for a roofline.


def work(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None = None, hand_on: bool = False, **_options
) -> list[Work]:
    """Count the operations and bytes of a call: a product and a sum an element, and of both factors backward.

    With a norm the backward computes y again; the norm's own operations, ten or so a channel of y, are not counted.
    Where the streams are handed on the backward reads their gradient so far.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None.
    """
    products = 2 * streams.numel()
    again = 0 if gain is None else products
    read = nbytes(streams) // streams.shape[-2]
    more = nbytes(streams) if hand_on else 0
    return [
        Work("hyper_pre", "forward", products, nbytes(streams, h_pre, gain) + read),
        Work("hyper_pre", "backward", 2 * products + again, 2 * nbytes(streams, h_pre, gain) + read + more),
    ]
