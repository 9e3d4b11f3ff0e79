"""The weighted sum that a sub-block reads, alone or with its RMSNorm, in one pass over the streams each way.

A program owns BT tokens. Where the streams were passed on (`hand_on`), a backward adds the gradient from the
operations that read them next to x̄.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import spans, sum_rows
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import (
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

# Without the norm: a program goes over the channels of its tokens.
#
#     forward   y = Σ_i h_i·x_i; saved: the inputs alone
#     backward  x̄_i = h_i·ȳ and h̄_i = Σ_d x_i·ȳ from one reading of x and ȳ


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


@operator
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


# With the norm: a program holds whole rows of y, so that the norm costs no further reading.
#
# With r = (mean(y²) + eps)^(−1/2), ŷ = r·y:
#
#     forward   y = Σ_i h_i·x_i,  u = ŷ ⊙ γ; saved: the inputs alone, and y is not written
#     backward  y and r again from x, and with w = ū ⊙ γ
#               ȳ = r·(w − ŷ·mean(w·ŷ)),   x̄_i = h_i·ȳ,   h̄_i = Σ_d x_i·ȳ,   γ̄ = Σ ū ⊙ ŷ
#               γ̄ is summed over a span of tokens a program, and the parts in a fixed order

SPANS, SPAN = 512, 16
"""The most spans of tokens, and the fewest tokens of one, a multiple of every BT."""


@triton.jit
def _normal(weights, rows, D, eps, N: tl.constexpr):
    """ŷ [BT, BD], the normalised weighted sum of rows, and r [BT]."""
    # y = Σ_i h_i·x_i
    y = weighted_sum(weights, rows, N)
    # r = (mean(y²) + eps)^(−1/2)
    r = tl.rsqrt(tl.sum(y * y, axis=1) / D + eps)
    return y * r[:, None], r


@triton.jit
def _load_gain(gain, channel, D):
    """γ at these channels, [1, BD] in fp32."""
    return tl.load(gain + channel, mask=channel < D, other=0.0).to(tl.float32)[None]


@triton.jit
def _pre_norm_forward(
    x, h, gain, u, TOKENS, D, eps, N: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """u [M, D] of x [M, N, D], h [M, N] and gain γ [D]; BD ≥ D."""
    token, there = token_tile(TOKENS, BT)
    channel, mask = channel_tile(0, there, D, BD)
    rows = load_streams(x, token, channel, mask, D, N)
    normal, _ = _normal(load_coefficients(h, token, there, N), rows, D, eps, N)
    # u = ŷ ⊙ γ
    store_stream(u, normal * _load_gain(gain, channel, D), 0, token, channel, mask, D, 1)


@triton.jit
def _pre_norm_backward(
    x,
    h,
    gain,
    du,
    more,
    dx,
    dh,
    dgain,
    TOKENS,
    D,
    SPAN,
    eps,
    N: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """The gradients of all inputs of `_pre_norm_forward`.

    inputs     x, h, gain, du ū [M, D], and more [M, N, D] or None, which dx is added to
    outputs    dx [M, N, D]; dh [M, N]; dgain [spans, D], every span's part
    sizes      TOKENS M; D channels; SPAN tokens a program; eps
    constants  N streams; BT tokens at a time; BD ≥ D
    """
    span = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BD,), tl.float32)
    for start in range(0, SPAN, BT):
        token = span * SPAN + start + tl.arange(0, BT)
        there = token < TOKENS
        channel, mask = channel_tile(0, there, D, BD)
        weights = load_coefficients(h, token, there, N)
        rows = load_streams(x, token, channel, mask, D, N)
        normal, r = _normal(weights, rows, D, eps, N)
        gradient = load_streams(du, token, channel, mask, D, 1)[0]
        # γ̄ = Σ ū ⊙ ŷ
        total += tl.sum(gradient * normal, axis=0)
        # ȳ = r·(w − ŷ·mean(w·ŷ)),  w = ū ⊙ γ
        to_normal = gradient * _load_gain(gain, channel, D)
        along = tl.sum(to_normal * normal, axis=1) / D
        to_sum = r[:, None] * (to_normal - normal * along[:, None])
        # h̄_i = Σ_d x_i·ȳ
        store_coefficients(
            dh, add_products(zero_coefficients(token, N), rows, (to_sum,), N, 1), token, there, N
        )
        # x̄_i = h_i·ȳ
        for i in tl.static_range(N):
            row = weights[i][:, None] * to_sum
            if more is not None:
                row += load_stream(more, i, token, channel, mask, D, N)
            store_stream(dx, row, i, token, channel, mask, D, N)
    channel = tl.arange(0, BD)
    tl.store(dgain + span * D + channel, total, mask=channel < D)


_ROWS = [
    triton.Config({"BT": tokens}, num_warps=warps)
    for tokens, warps in ((2, 8), (1, 4), (1, 8), (4, 8), (1, 16))
]
_norm_forward_tuned = Tuned(_pre_norm_forward, _ROWS, ["D", "N"])
_norm_backward_tuned = Tuned(_pre_norm_backward, _ROWS, ["D", "N"])


@operator
class HyperPreNorm(torch.autograd.Function):
    """u [B, T, D] of streams [B, T, n, D], h [B, T, n] and gain [D], and the streams where they are handed on."""

    @staticmethod
    def forward(ctx, x, h, gain, eps, hand_on):
        x, h, gain = x.contiguous(), h.contiguous(), gain.contiguous()
        batch, time, n, width = x.shape
        u = x.new_empty(batch, time, width)
        _norm_forward_tuned[lambda meta: (triton.cdiv(batch * time, meta["BT"]),)](
            x, h, gain, u, batch * time, width, eps, N=n, BD=triton.next_power_of_2(width)
        )
        ctx.save_for_backward(x, h, gain)
        ctx.eps = eps
        return (u, x) if hand_on else u

    @staticmethod
    @first_order
    def backward(ctx, du, more=None):
        x, h, gain = ctx.saved_tensors
        batch, time, n, width = x.shape
        dx, dh = torch.empty_like(x), torch.empty_like(h)
        span, count = spans(batch * time, SPANS, SPAN)
        more = None if more is None else more.contiguous()
        parts = torch.empty(count, width, dtype=torch.float32, device=x.device)
        _norm_backward_tuned[(count,)](
            x, h, gain, du.contiguous(), more, dx, dh, parts, batch * time, width, span, ctx.eps,
            N=n, BD=triton.next_power_of_2(width),
        )  # fmt: skip
        return dx, dh, sum_rows(parts, gain.dtype), None, None


# The backend.


def hyper_pre_triton(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None, eps: float, hand_on: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute `kernels.hyper_pre` on a GPU: memory-bound, each input read once forward and once backward.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None -> y [B, T, D] in the streams' dtype; with hand_on the
    streams too, second.
    """
    if torch.compiler.is_compiling() and hand_on:  # the compiler adds gradients up itself
        return hyper_pre_triton(streams, h_pre, gain=gain, eps=eps, hand_on=False), streams
    returns = (True, True) if hand_on else (True,)
    if gain is None:
        return _HyperPre(streams, h_pre, hand_on, returns=returns)
    return HyperPreNorm(streams, h_pre, gain, eps, hand_on, returns=returns)
