"""The streams after a sub-block, in one pass over them each way.

A program owns BT tokens and goes over their channels; the n² coefficients of a token stay in registers.

    forward   x'_i = Σ_j r_ij·x_j + p_i·z; saved: the inputs alone
    backward  x̄_j = Σ_i r_ij·x̄'_i,   z̄ = Σ_i p_i·x̄'_i,   r̄_ij = Σ_d x̄'_i·x_j,   p̄_i = Σ_d x̄'_i·z
              from one reading of x, z and x̄'

One matrix r for all tokens is read by each of them; its gradient is every token's own first, then summed over
tokens in two steps of a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import sum_rows
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import (
    add_products,
    channel_tile,
    load_coefficients,
    load_streams,
    store_coefficients,
    store_stream,
    token_tile,
    weighted_sum,
    zero_coefficients,
)
from kernels.triton_common.tuning import Tuned

SUMMED = 64
"""Tokens whose gradients of one common matrix are summed in the second step."""


@triton.jit
def _coefficients(res, post, token, there, N: tl.constexpr, STATIC: tl.constexpr):
    """r in N² vectors, row by row, and p in N."""
    return load_coefficients(res, token * 0 if STATIC else token, there, N * N), load_coefficients(
        post, token, there, N
    )


@triton.jit
def _post_forward(
    x, z, res, post, after, TOKENS, D,
    N: tl.constexpr, STATIC: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The streams after a sub-block.

    inputs     x [M, N, D]; z [M, D]; res r [M, N, N], or [N, N] (STATIC); post p [M, N]
    outputs    after [M, N, D]
    sizes      TOKENS M; D channels
    constants  N streams; STATIC; BT tokens a program; BD channels at a time
    """
    token, there = token_tile(TOKENS, BT)
    r, p = _coefficients(res, post, token, there, N, STATIC)
    for start in range(0, D, BD):
        channel, mask = channel_tile(start, there, D, BD)
        rows = load_streams(x, token, channel, mask, D, N)
        output = load_streams(z, token, channel, mask, D, 1)
        # x'_i = Σ_j r_ij·x_j + p_i·z
        for i in tl.static_range(N):
            row = weighted_sum(r[i * N : (i + 1) * N], rows, N) + p[i][:, None] * output[0]
            store_stream(after, row, i, token, channel, mask, D, N)


@triton.jit
def _post_backward(
    x, z, res, post, dafter, dx, dz, dres, dpost, TOKENS, D,
    N: tl.constexpr, STATIC: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The gradients of all inputs of `_post_forward`.

    inputs     x, z, res, post, and dafter x̄' [M, N, D]
    outputs    dx [M, N, D]; dz [M, D]; dres [M, N, N], every token's own; dpost [M, N]
    sizes      TOKENS M; D channels
    constants  as in `_post_forward`
    """
    token, there = token_tile(TOKENS, BT)
    r, p = _coefficients(res, post, token, there, N, STATIC)
    d_r, d_p = zero_coefficients(token, N * N), zero_coefficients(token, N)
    for start in range(0, D, BD):
        channel, mask = channel_tile(start, there, D, BD)
        gradient = load_streams(dafter, token, channel, mask, D, N)
        # r̄_ij = Σ_d x̄'_i·x_j
        d_r = add_products(d_r, gradient, load_streams(x, token, channel, mask, D, N), N, N)
        # p̄_i = Σ_d x̄'_i·z
        d_p = add_products(d_p, gradient, load_streams(z, token, channel, mask, D, 1), N, 1)
        # x̄_j = Σ_i r_ij·x̄'_i
        for j in tl.static_range(N):
            store_stream(dx, weighted_sum(r[j::N], gradient, N), j, token, channel, mask, D, N)
        # z̄ = Σ_i p_i·x̄'_i
        store_stream(dz, weighted_sum(p, gradient, N), 0, token, channel, mask, D, 1)
    store_coefficients(dres, d_r, token, there, N * N)
    store_coefficients(dpost, d_p, token, there, N)


# As many tokens as warps, so that a sum over channels stays within a warp.
_TILES = [
    triton.Config({"BT": tokens, "BD": width}, num_warps=tokens)
    for tokens, width in ((4, 256), (2, 256), (4, 128), (8, 256), (1, 512), (4, 64))
]
_forward_tuned = Tuned(_post_forward, _TILES, ["D", "N", "STATIC"])
_backward_tuned = Tuned(_post_backward, _TILES, ["D", "N", "STATIC"])


@operator
class _HyperPost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, res, post):
        x, z, res, post = (y.contiguous() for y in (x, z, res, post))
        after = torch.empty_like(x)
        _forward_tuned[_grid(z)](x, z, res, post, after, **_sizes(x, res))
        ctx.save_for_backward(x, z, res, post)
        return after

    @staticmethod
    @first_order
    def backward(ctx, dafter):
        x, z, res, post = ctx.saved_tensors
        dx, dz, dpost = (torch.empty_like(y) for y in (x, z, post))
        static = res.dim() == 2
        dres = _own_matrices(x) if static else torch.empty_like(res)
        _backward_tuned[_grid(z)](x, z, res, post, dafter.contiguous(), dx, dz, dres, dpost, **_sizes(x, res))
        return dx, dz, _sum_over_tokens(dres, res.dtype) if static else dres, dpost


def _sizes(x: Tensor, res: Tensor) -> dict[str, int | bool]:
    batch, time, n, width = x.shape
    return {"TOKENS": batch * time, "D": width, "N": n, "STATIC": res.dim() == 2}


def _grid(z: Tensor):
    return lambda meta: (triton.cdiv(z.shape[0] * z.shape[1], meta["BT"]),)


def _own_matrices(x: Tensor) -> Tensor:
    """Room for every token's gradient of one common matrix, filled up with zeros to whole steps of the sum."""
    tokens, n = x.shape[0] * x.shape[1], x.shape[2]
    return torch.zeros(-(-tokens // SUMMED) * SUMMED, n, n, dtype=torch.float32, device=x.device)


def _sum_over_tokens(parts: Tensor, dtype: torch.dtype) -> Tensor:
    steps = parts.view(len(parts) // SUMMED, SUMMED, *parts.shape[1:])
    return sum_rows(sum_rows(steps, torch.float32), dtype)


def hyper_post_triton(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """Compute `kernels.hyper_post` on a GPU: memory-bound, each input read once forward and once backward.

    streams [B, T, n, D], z [B, T, D], h_res [B, T, n, n] or [n, n], h_post [B, T, n]
    -> [B, T, n, D] in the streams' dtype, computed in at least fp32.
    """
    return _HyperPost(streams, z, h_res, h_post)
