"""The weighted sum of streams, with a gradient that passes over them once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.stream_products import row_products, spread, weighted_sum


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
