"""The gradients of the coefficients of hyper-connections, in the notation of triton_ops.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.hyper_coefficients.triton_tiles import TOKEN_TILES, affine, load_wide, precision_of, sizes_of
from kernels.triton_common.device import sigmoid, spans, sum_rows
from kernels.triton_common.masked_tiles import store_matrix
from kernels.triton_common.tuning import Tuned

SPANS, SPAN = 64, 512
"""For the weight's gradient: the most spans of tokens, and the fewest tokens of one, a multiple of every BT."""
NUMBER_SPANS, NUMBER_SPAN = 256, 64
"""The same for bias and scale, whose parts are small."""


@triton.jit
def _numbers_backward(
    raw, inverse, scale, bias, dpre, dpost, dres, dproduct, along, sums, TOKENS, K, ROWS, SPAN,
    N: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """The backward of the coefficients: p̄ and c, and the part of every span in b̄ and s̄.

    inputs     raw [M, ROWS]; inverse r [M]; scale s [3]; bias b [ROWS]; dpre, dpost [M, N]; dres [M, ROWS − 2N]
    outputs    dproduct p̄ [M, ROWS]; along c [M]; sums [spans, ROWS + 3]
    sizes      TOKENS M; K numbers a token; ROWS of φ; SPAN tokens a program
    constants  N streams; BN ≥ ROWS; BT tokens at a time
    """
    span = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BN).to(tl.int64)
    part, s, b = affine(scale, bias, row, ROWS, N)
    to_bias, to_scale = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    for start in range(0, SPAN, BT):
        token = span * SPAN + start + tl.arange(0, BT)
        there = token < TOKENS
        r = tl.load(inverse + token, mask=there, other=0.0)
        values = load_wide(raw, token, row, TOKENS, ROWS)
        # l̄ = h̄_pre·σ'(l),  2·h̄_post·σ'(l)  and  r̄es,  by rows;  σ' = σ·(1 − σ),  l = s·raw + b
        share = sigmoid(s * values + b)
        gradient = load_wide(dpre, token, row, TOKENS, N)
        gradient += 2 * load_wide(dpost, token, row - N, TOKENS, N)
        gradient *= share * (1 - share)
        gradient += load_wide(dres, token, row - 2 * N, TOKENS, ROWS - 2 * N)
        # b̄ = Σ l̄,  s̄ = Σ l̄·raw
        to_bias += tl.sum(gradient, axis=0)
        to_scale += tl.sum(gradient * values, axis=0)
        # p̄ = r·s·l̄,  c = r·(p̄·raw)/K
        gradient *= r[:, None] * s
        store_matrix(dproduct, gradient, token, row, TOKENS, ROWS)
        tl.store(along + token, tl.sum(gradient * values, axis=1) * r / K, mask=there)
    sums += span * (ROWS + 3)
    tl.store(sums + row, to_bias, mask=row < ROWS)
    for i in tl.static_range(3):
        tl.store(sums + ROWS + i, tl.sum(tl.where(part == i, to_scale, 0.0)))


@triton.jit
def _streams_backward(
    x, phi, dproduct, along, more, dx, dphi, TOKENS, K, ROWS, SPAN,
    PRECISION: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx, and the part of every span in the weight's gradient.

    inputs     x [M, K]; phi φ [ROWS, K]; dproduct p̄ [M, ROWS]; along c [M]; more [M, K] or None,
               which dx is added to
    outputs    dx [M, K]; dphi [spans, ROWS, K]
    sizes      TOKENS M; K numbers a token; ROWS of φ; SPAN tokens a program
    constants  PRECISION of products; BN ≥ ROWS; BT tokens at a time; BK numbers a program
    """
    span = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BK + tl.arange(0, BK)
    row = tl.arange(0, BN).to(tl.int64)
    weight = load_wide(phi, row, column, ROWS, K)
    total = tl.zeros((BN, BK), tl.float32)
    for start in range(0, SPAN, BT):
        token = span * SPAN + start + tl.arange(0, BT)
        gradient = load_wide(dproduct, token, row, TOKENS, ROWS)
        c = tl.load(along + token, mask=token < TOKENS, other=0.0)
        streams = load_wide(x, token, column, TOKENS, K)
        # x̄ = φᵀ·p̄ − c·x
        to_x = tl.dot(gradient, weight, input_precision=PRECISION) - c[:, None] * streams
        if more is not None:
            to_x += load_wide(more, token, column, TOKENS, K)
        store_matrix(dx, to_x, token, column, TOKENS, K)
        # φ̄ = Σ p̄·xᵀ
        total += tl.dot(tl.trans(gradient), streams, input_precision=PRECISION)
    store_matrix(dphi + span * ROWS * K, total, row, column, ROWS, K)


_ROWS = [triton.Config({"BT": tokens}, num_warps=warps) for tokens, warps in ((64, 4), (32, 4), (16, 2))]
_numbers_tuned = Tuned(_numbers_backward, _ROWS, ["BN"])
_streams_tuned = Tuned(_streams_backward, TOKEN_TILES, ["K", "BN", "PRECISION"])


def numbers_gradients(
    x: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    raw: Tensor,
    inverse: Tensor,
    upstream: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute p̄ [B, T, 2n + m] and c [B, T], and the gradients of scale and bias.

    upstream  the gradients of pre, post and res
    """
    dproduct, along = torch.empty_like(raw), torch.empty_like(inverse)
    sizes, rows = sizes_of(x, phi), len(phi)
    span, count = spans(sizes["TOKENS"], NUMBER_SPANS, NUMBER_SPAN)
    sums = torch.empty(count, rows + 3, dtype=torch.float32, device=x.device)
    _numbers_tuned[(count,)](
        raw, inverse, scale, bias, *upstream, dproduct, along, sums, SPAN=span, N=x.shape[-2], **sizes
    )
    total = sum_rows(sums, torch.float32)
    return dproduct, along, total[rows:].to(scale.dtype), total[:rows].to(bias.dtype)


def streams_gradients(
    x: Tensor, phi: Tensor, dproduct: Tensor, along: Tensor, more: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute x̄ [B, T, n, D] and φ̄ [2n + m, n·D] from p̄ and c, in the dtypes of x and phi.

    x [B, T, n, D]; phi [2n + m, n·D]; dproduct p̄ [B·T, 2n + m] and along c [B·T] in fp32; more like x, or None: added
    to x̄.
    """
    sizes = sizes_of(x, phi)
    span, count = spans(sizes["TOKENS"], SPANS, SPAN)
    dx = torch.empty_like(x)
    parts = torch.empty(count, *phi.shape, dtype=torch.float32, device=x.device)
    _streams_tuned[lambda meta: (triton.cdiv(meta["K"], meta["BK"]), count)](
        x, phi, dproduct, along, more, dx, parts, SPAN=span, PRECISION=precision_of(x, phi), **sizes
    )
    return dx, sum_rows(parts, phi.dtype)
