"""A linear map of normalised vectors in one pass over them each way.

With W [N, K] and s = (mean(x²) + eps)^(−1/2) of each vector:

    forward   a program has BT vectors and goes over their K numbers: product and squares from one reading, then
              y = s·W·x. Saved: x, W, y and s
    backward  a program has BK of the K numbers and a span of vectors: from one reading of x
              x̄ = s·Wᵀȳ − s²·(ȳ·y)/K · x,   W̄ = Σ s·ȳ·xᵀ as one partial sum a span, added in a fixed order

Products keep fp32's digits on tensor cores: of 16-bit inputs as they are (TF32 holds them exactly), of fp32 ones
as three TF32 products of high and low halves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.launch.device import padded, sum_rows
from kernels.launch.streams import token_tile
from kernels.launch.tuning import Tuned

SPANS = 64
"""At most so many parts has the weight's gradient before it is summed."""
SPAN = 512
"""At least so many vectors has a span, a multiple of every BT."""


@triton.jit
def _load_matrix(x, row, column, ROWS, COLUMNS):
    """x [ROWS, COLUMNS] at these places in fp32, 0 beyond it."""
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
    return tl.load(x + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_matrix(x, values, row, column, ROWS, COLUMNS):
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
    tl.store(x + row[:, None] * COLUMNS + column[None], values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def _rms_linear_forward(
    x, weight, y, scale, TOKENS, K, OUT, eps,
    PRECISION: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    token, there = token_tile(TOKENS, BT)
    out = tl.arange(0, BN).to(tl.int64)
    product = tl.zeros((BT, BN), tl.float32)
    square = tl.zeros((BT,), tl.float32)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        rows = _load_matrix(x, token, column, TOKENS, K)
        square += tl.sum(rows * rows, axis=1)
        part = tl.trans(_load_matrix(weight, out, column, OUT, K))
        product += tl.dot(rows, part, input_precision=PRECISION)
    s = tl.rsqrt(square / K + eps)
    _store_matrix(y, product * s[:, None], token, out, TOKENS, OUT)
    tl.store(scale + token, s, mask=there)


@triton.jit
def _rms_linear_backward(
    x, weight, y, scale, dy, dx, dweight, TOKENS, K, OUT, SPAN,
    PRECISION: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx, and of every span its part of the weight's gradient [spans, OUT, K]."""
    span = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BK + tl.arange(0, BK)
    out = tl.arange(0, BN).to(tl.int64)
    part = _load_matrix(weight, out, column, OUT, K)
    total = tl.zeros((BN, BK), tl.float32)
    for start in range(0, SPAN, BT):
        token = span * SPAN + start + tl.arange(0, BT)
        s = tl.load(scale + token, mask=token < TOKENS, other=0.0)
        gradient = _load_matrix(dy, token, out, TOKENS, OUT)
        along = tl.sum(gradient * _load_matrix(y, token, out, TOKENS, OUT), axis=1) * s * s / K
        gradient *= s[:, None]
        rows = _load_matrix(x, token, column, TOKENS, K)
        to_x = tl.dot(gradient, part, input_precision=PRECISION) - along[:, None] * rows
        _store_matrix(dx, to_x, token, column, TOKENS, K)
        total += tl.dot(tl.trans(gradient), rows, input_precision=PRECISION)
    _store_matrix(dweight + span * OUT * K, total, out, column, OUT, K)


_TILES = [
    triton.Config({"BT": tokens, "BK": width}, num_warps=warps, num_stages=stages)
    for tokens, width, warps, stages in ((64, 64, 4, 3), (64, 32, 4, 4), (128, 64, 8, 3), (32, 64, 4, 3))
]
_forward_tuned = Tuned(_rms_linear_forward, _TILES, ["K", "BN", "PRECISION"])
_backward_tuned = Tuned(_rms_linear_backward, _TILES, ["K", "BN", "PRECISION"])


class _RMSLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty(*x.shape[:-1], len(weight), dtype=torch.float32, device=x.device)
        scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        sizes = _sizes(x, weight)
        _forward_tuned[lambda meta: (triton.cdiv(meta["TOKENS"], meta["BT"]),)](
            x, weight, y, scale, eps=eps, **sizes
        )
        ctx.save_for_backward(x, weight, y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, y, scale = ctx.saved_tensors
        sizes = _sizes(x, weight)
        span = triton.cdiv(max(1, sizes["TOKENS"]), SPANS * SPAN) * SPAN
        spans = triton.cdiv(sizes["TOKENS"], span)
        dx = torch.empty_like(x)
        parts = torch.empty(spans, *weight.shape, dtype=torch.float32, device=x.device)
        _backward_tuned[lambda meta: (triton.cdiv(meta["K"], meta["BK"]), spans)](
            x, weight, y, scale, dy.contiguous(), dx, parts, SPAN=span, **sizes
        )
        return dx, sum_rows(parts, weight.dtype), None


def _sizes(x: Tensor, weight: Tensor) -> dict[str, int | str]:
    out, width = weight.shape
    exact = x.dtype == weight.dtype != torch.float32
    return {
        "TOKENS": x.numel() // width,
        "K": width,
        "OUT": out,
        "PRECISION": "tf32" if exact else "tf32x3",
        "BN": padded(out),
    }


def rms_linear_triton(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`kernels.rms_linear` on a GPU: memory-bound for few outputs, x is read once forward and once backward."""
    return _RMSLinear.apply(x, weight, eps)
