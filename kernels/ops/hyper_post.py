"""The streams after a sub-block, mixed and written to: the public function, its definition and PyTorch's form.

x_i ← Σ_j h_res_ij · x_j + h_post_i · z
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named, without_autocast
from kernels.streams import check_streams, pair_products, refuses_streams, row_products, weighted_sum
from kernels.triton_common import lazily
from kernels.triton_common.tiles import Work, nbytes

# The definition.


def hyper_post_reference(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """Return x_i ← Σ_j h_res_ij · x_j + h_post_i · z.

    streams [B, T, n, D], z [B, T, D], h_res [B, T, n, n] or [n, n], h_post [B, T, n]
    -> [B, T, n, D] in the streams' dtype, computed in at least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    x, z, h_res, h_post = (y.to(wide) for y in (streams, z, h_res, h_post))
    mixed = (h_res[..., None] * x.unsqueeze(-3)).sum(-2)
    return (mixed + h_post[..., None] * z.unsqueeze(-2)).to(streams.dtype)


# One product of small matrices a token.


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


# The public function and its backends.

__all__ = ["hyper_post"]


def _refuses(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, **_options) -> str | None:
    return refuses_streams(streams.shape[-2], streams, z, h_res, h_post)


OPERATION = Operation("hyper_post")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_post_triton", "hyper_post_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_post_torch, suits=always)
OPERATION.register("reference", hyper_post_reference, suits=only_when_named)


def hyper_post(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the streams after a sub-block: mixed with each other, plus its output times h_post.

        x_i ← Σ_j h_res_ij · x_j + h_post_i · z

    streams  [B, T, n, D], x; any floating dtype
    z        [B, T, D], the sub-block's output
    h_res    [B, T, n, n], or [n, n] for all tokens
    h_post   [B, T, n]
    backend  auto, triton (what auto takes on a GPU; at most 8 streams), torch, reference
    returns  [B, T, n, D] in the streams' dtype, computed in at least fp32, under autocast too

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: hyper-connections (arXiv:2409.19606), equation 3; mHC (arXiv:2512.24880), equation 3.
    """
    n = streams.shape[-2:-1]
    check_streams(
        "hyper_post",
        streams,
        z=(z, streams.shape[:-2] + streams.shape[-1:]),
        h_res=(h_res, n + n if h_res.dim() == 2 else streams.shape[:-1] + n),
        h_post=(h_post, streams.shape[:-1]),
    )
    return OPERATION(streams, z, h_res, h_post, backend=backend)


# Operations and bytes, for a roofline.


def work(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: n + 1 products and sums an element, and of both factors backward.

    streams [B, T, n, D], z [B, T, D], h_res [B, T, n, n] or [n, n], h_post [B, T, n].
    """
    products = 2 * streams.numel() * (streams.shape[-2] + 1)
    inputs = nbytes(streams, z, h_res, h_post)
    return [
        Work("hyper_post", "forward", products, inputs + nbytes(streams)),
        Work("hyper_post", "backward", 2 * products, 2 * inputs + nbytes(streams)),
    ]
