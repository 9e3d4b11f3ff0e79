"""The weighted sum that a sub-block reads, in one pass over the streams each way.

A program owns BT tokens and goes over their channels.

    forward   y = Σ_i h_i·x_i; saved: the inputs alone
    backward  x̄_i = h_i·ȳ and h̄_i = Σ_d x_i·ȳ from one reading of x and ȳ; where the streams were passed on
              (`hand_on`), the gradient from the operations that read them next is added to x̄

With the norm that follows it holds whole rows (triton_norm.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.hyper_pre.triton_norm import HyperPreNorm
from kernels.triton_common.streams import (
    add_products,
    channel_tile,
    load_coefficients,
    load_stream,
    load_streams,
    store_coefficients,
    store_stream,
    token_tile,
    weighted_sum,
    zero_coefficients,
)
from kernels.triton_common.tuning import Tuned


@triton.jit
def _pre_forward(x, h, y, TOKENS, D, N: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """y [M, D] of x [M, N, D] and h [M, N]."""
    token, there = token_tile(TOKENS, BT)
    weights = load_coefficients(h, token, there, N)
    for start in range(0, D, BD):
        channel, mask = channel_tile(start, there, D, BD)
        # y = Σ_i h_i·x_i
        read = weighted_sum(weights, load_streams(x, token, channel, mask, D, N), N)
        store_stream(y, read, 0, token, channel, mask, D, 1)


@triton.jit
def _pre_backward(x, h, dy, more, dx, dh, TOKENS, D, N: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """dx [M, N, D] and dh [M, N] of dy [M, D], and of more [M, N, D] or None, which dx is added to."""
    token, there = token_tile(TOKENS, BT)
    weights = load_coefficients(h, token, there, N)
    sums = zero_coefficients(token, N)
    for start in range(0, D, BD):
        channel, mask = channel_tile(start, there, D, BD)
        gradient = load_streams(dy, token, channel, mask, D, 1)
        # h̄_i = Σ_d x_i·ȳ
        sums = add_products(sums, load_streams(x, token, channel, mask, D, N), gradient, N, 1)
        # x̄_i = h_i·ȳ
        for i in tl.static_range(N):
            row = weights[i][:, None] * gradient[0]
            if more is not None:
                row += load_stream(more, i, token, channel, mask, D, N)
            store_stream(dx, row, i, token, channel, mask, D, N)
    store_coefficients(dh, sums, token, there, N)


# As many tokens as warps, so that a sum over channels stays within a warp.
_TILES = [
    triton.Config({"BT": tokens, "BD": width}, num_warps=tokens)
    for tokens, width in ((4, 256), (4, 512), (2, 512), (8, 256), (1, 1024), (4, 64))
]
_forward_tuned = Tuned(_pre_forward, _TILES, ["D", "N"])
_backward_tuned = Tuned(_pre_backward, _TILES, ["D", "N"])


class _HyperPre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, h, hand_on):
        x, h = x.contiguous(), h.contiguous()
        batch, time, n, width = x.shape
        y = x.new_empty(batch, time, width)
        _forward_tuned[_grid(batch * time)](x, h, y, batch * time, width, N=n)
        ctx.save_for_backward(x, h)
        return (y, x) if hand_on else y

    @staticmethod
    @first_order
    def backward(ctx, dy, more=None):
        x, h = ctx.saved_tensors
        batch, time, n, width = x.shape
        dx, dh = torch.empty_like(x), torch.empty_like(h)
        more = None if more is None else more.contiguous()
        _backward_tuned[_grid(batch * time)](x, h, dy.contiguous(), more, dx, dh, batch * time, width, N=n)
        return dx, dh, None


def _grid(tokens: int):
    return lambda meta: (triton.cdiv(tokens, meta["BT"]),)


def hyper_pre_triton(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None, eps: float, hand_on: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute `kernels.hyper_pre` on a GPU: memory-bound, each input read once forward and once backward.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None -> y [B, T, D] in the streams' dtype; with hand_on the
    streams too, second.
    """
    if gain is None:
        return _HyperPre.apply(streams, h_pre, hand_on)
    return HyperPreNorm.apply(streams, h_pre, gain, eps, hand_on)
