"""The coefficients of hyper-connections in one pass over the streams each way.

With K = n·D numbers a token, φ [ROWS, K] for its 2n + m coefficients, and r = (mean(x²) + eps)^(−1/2):

    forward   a program has BT tokens and goes over their K numbers: product and squares from one reading, then
              raw = r·φ·vec x, l = s·raw + b and the sigmoids. Saved: the arguments, raw and r
    backward  (triton_backward.py) first the coefficients, without the streams, a span of tokens a program:
              l̄ from the sigmoids computed again, b̄ = Σ l̄, s̄ = Σ l̄·raw, and for the streams p̄ = r·s·l̄ and
              c = r·(p̄·raw)/K.
              Then a program has BK of the K numbers and a span of tokens, and from one reading of x
              x̄ = φᵀp̄ − c·x,   φ̄ = Σ p̄·xᵀ
              and where the streams were passed on (`hand_on`), the gradient from the operations that read them next
              is added to x̄.
              Sums over tokens are one part a span, and the parts are added in a fixed order

Products keep fp32's digits on tensor cores: of 16-bit inputs as they are (TF32 holds them exactly), of fp32 ones
as three TF32 products of high and low halves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.hyper_coefficients.triton_backward import numbers_gradients, streams_gradients
from kernels.ops.hyper_coefficients.triton_tiles import TOKEN_TILES, affine, load_wide, precision_of, sizes_of
from kernels.triton_common.device import sigmoid
from kernels.triton_common.masked_tiles import store_matrix
from kernels.triton_common.streams import token_tile
from kernels.triton_common.tuning import Tuned


@triton.jit
def _forward(
    x, phi, scale, bias, pre, post, res, raw, inverse, TOKENS, K, ROWS, eps,
    N: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All coefficients of BT tokens, and the numbers that the backward needs.

    inputs     x [M, K]; phi φ [ROWS, K]; scale s [3]; bias b [ROWS]
    outputs    pre, post [M, N]; res [M, ROWS − 2N]; raw [M, ROWS]; inverse r [M]
    sizes      TOKENS M; K = N·D numbers a token; ROWS of φ; eps
    constants  N streams; PRECISION of products; BN ≥ ROWS; BT tokens a program; BK numbers at a time
    """
    token, there = token_tile(TOKENS, BT)
    row = tl.arange(0, BN).to(tl.int64)
    product = tl.zeros((BT, BN), tl.float32)
    square = tl.zeros((BT,), tl.float32)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        streams = load_wide(x, token, column, TOKENS, K)
        # Σ x²
        square += tl.sum(streams * streams, axis=1)
        # φ·vec x
        weight = tl.trans(load_wide(phi, row, column, ROWS, K))
        product += tl.dot(streams, weight, input_precision=PRECISION)
    # r = (mean(x²) + eps)^(−1/2),  raw = r·φ·vec x
    r = tl.rsqrt(square / K + eps)
    values = product * r[:, None]
    tl.store(inverse + token, r, mask=there)
    store_matrix(raw, values, token, row, TOKENS, ROWS)
    # h_pre = σ(s₀·raw_pre + b_pre),  h_post = 2σ(s₁·raw_post + b_post),  res = s₂·raw_res + b_res
    _, s, b = affine(scale, bias, row, ROWS, N)
    logits = s * values + b
    share = sigmoid(logits)
    store_matrix(pre, share, token, row, TOKENS, N)
    store_matrix(post, 2 * share, token, row - N, TOKENS, N)
    store_matrix(res, logits, token, row - 2 * N, TOKENS, ROWS - 2 * N)


_forward_tuned = Tuned(_forward, TOKEN_TILES, ["K", "BN", "PRECISION"])


class _Coefficients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phi, scale, bias, eps, hand_on):
        x, phi, scale, bias = (y.contiguous() for y in (x, phi, scale, bias))
        sizes, n = sizes_of(x, phi), x.shape[-2]
        options = {"dtype": torch.float32, "device": x.device}
        pre, post, res, raw = (
            torch.empty(*x.shape[:2], width, **options) for width in (n, n, len(phi) - 2 * n, len(phi))
        )
        inverse = torch.empty(x.shape[:2], **options)
        _forward_tuned[lambda meta: (triton.cdiv(meta["TOKENS"], meta["BT"]),)](
            x, phi, scale, bias, pre, post, res, raw, inverse,
            eps=eps, N=n, PRECISION=precision_of(x, phi), **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, phi, scale, bias, raw, inverse)
        return pre, post, res, *([x] if hand_on else [])

    @staticmethod
    @first_order
    def backward(ctx, dpre, dpost, dres, more=None):
        x, phi, scale, bias, raw, inverse = ctx.saved_tensors
        upstream = tuple(y.contiguous() for y in (dpre, dpost, dres))
        dproduct, along, dscale, dbias = numbers_gradients(x, phi, scale, bias, raw, inverse, upstream)
        more = None if more is None else more.contiguous()
        return *streams_gradients(x, phi, dproduct, along, more), dscale, dbias, None, None


def hyper_coefficients_triton(
    streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, eps: float, hand_on: bool
) -> tuple[Tensor, ...]:
    """Compute `kernels.hyper_coefficients` on a GPU: memory-bound, the streams are read once each way.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m] in fp32;
    with hand_on the streams, fourth.
    """
    return _Coefficients.apply(streams, phi, scale, bias, eps, hand_on)
