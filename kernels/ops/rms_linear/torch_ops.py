"""A linear map of normalised vectors in three passes over them, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import without_autocast


def rms_linear_torch(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The product first, then its scale."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        return _RMSLinear.apply(x.to(wide), weight.to(wide), eps)


class _RMSLinear(torch.autograd.Function):
    """y = s·W·x with s = (mean(x²) + eps)^(−1/2);   x̄ = s·Wᵀ·ȳ − s²·(ȳ·y)/K · x,   W̄ = Σ s·ȳ·xᵀ."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
        scale = torch.rsqrt(square / x.shape[-1] + eps)
        y = (x @ weight.T) * scale
        ctx.save_for_backward(x, weight, scale, y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, scale, y = ctx.saved_tensors
        with without_autocast(grad):
            scaled = scale * grad
            along = (grad * y).sum(-1, keepdim=True) * scale.square() / -x.shape[-1]
            d_x = torch.addcmul(scaled @ weight, along, x)
            d_weight = scaled.flatten(0, -2).T @ x.flatten(0, -2)
        return d_x, d_weight, None
