"""The streams after a sub-block, as one product of small matrices a token."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.stream_products import pair_products, row_products, weighted_sum


def hyper_post_torch(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """Compute `kernels.hyper_post`: [B, T, n, n] · [B, T, n, D], and the output's share in one pass."""
    wide = torch.promote_types(streams.dtype, torch.float32)
    with without_autocast(streams):
        return _Write.apply(*(x.to(wide) for x in (streams, z, h_res, h_post))).to(streams.dtype)


class _Write(torch.autograd.Function):
    """x'_i = Σ_j r_ij·x_j + p_i·z;   x̄ = rᵀ·x̄',   z̄ = Σ_i p_i·x̄'_i,   r̄_ij = x̄'_i·x_j,   p̄_i = x̄'_i·z."""

    @staticmethod
    def forward(ctx, x: Tensor, z: Tensor, res: Tensor, post: Tensor) -> Tensor:
        ctx.save_for_backward(x, z, res, post)
        return torch.addcmul(res @ x, post.unsqueeze(-1), z.unsqueeze(-2))

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, z, res, post = ctx.saved_tensors
        with without_autocast(grad):
            d_res = pair_products(grad, x).sum_to_size(res.shape)
            return res.mT @ grad, weighted_sum(post, grad), d_res, row_products(grad, z)
