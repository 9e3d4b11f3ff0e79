"""The coefficients of hyper-connections in one pass over the streams each way.

With K = n·D numbers a token, φ [ROWS, K] for its 2n + m coefficients, and r = (mean(x²) + eps)^(−1/2):

    forward   a program has BT tokens and goes over their K numbers: product and squares from one reading, then
              raw = r·φ·vec x, l = s·raw + b and the sigmoids. Saved: the arguments, raw and r
    backward  first the coefficients, without the streams, a span of tokens a program:
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

from kernels.autograd import first_order
from kernels.triton_common import padded, sigmoid, spans, sum_rows
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_matrix, store_matrix, token_tile
from kernels.triton_common.tuning import Tuned

# Loads, scales and biases, and sizes, for all kernels.


def _token_tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BT": tokens, "BK": width}, num_warps=warps, num_stages=stages)
        for tokens, width, warps, stages in sizes
    ]


TOKEN_TILES = _token_tiles((64, 64, 4, 3), (64, 32, 8, 2), (128, 64, 8, 3), (32, 64, 8, 3))
# Larger ones would spill: the weight's gradient stays in registers.
STREAM_TILES = _token_tiles((64, 32, 8, 2), (32, 64, 8, 3), (32, 32, 4, 3))


@triton.jit
def load_wide(x, row, column, ROWS, COLUMNS):
    """x [ROWS, COLUMNS] at these places in fp32; 0 outside."""
    return load_matrix(x, row, column, ROWS, COLUMNS).to(tl.float32)


@triton.jit
def affine(scale, bias, row, ROWS, N: tl.constexpr):
    """The part that each row of φ belongs to (0 pre, 1 post, 2 res), its scale and its bias, [ROWS]."""
    part = tl.minimum(row // N, 2)
    s = tl.load(scale + part).to(tl.float32)
    return part, s[None], tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)[None]


def sizes_of(x: Tensor, phi: Tensor) -> dict[str, int]:
    """Return the sizes of a call with x [B, T, n, D] and phi [2n + m, n·D] by name, as kernels take them."""
    rows, width = phi.shape
    return {"TOKENS": x.numel() // width, "K": width, "ROWS": rows, "BN": padded(rows)}


def precision_of(x: Tensor, phi: Tensor) -> str:
    """Return the `tl.dot` precision that keeps all digits of x [B, T, n, D] and phi [2n + m, n·D]."""
    return "tf32" if x.dtype == phi.dtype != torch.float32 else "tf32x3"


# The forward pass.


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


# The gradients.

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
_streams_tuned = Tuned(_streams_backward, STREAM_TILES, ["K", "BN", "PRECISION"])


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


# The cap of the scale of res: one program reads φ_res forward; backward each has BK columns.
#
#     b = |s₂|·c·‖A‖_F·√K,  A_ij = (φ_ij − φ_ji)/2 over i, j < n;      s₂ ← s₂·g/max(g, b)
#     where b ≥ g this is g·sgn(s₂)/(c·‖A‖·√K), and so φ̄_ij = −s̄₂·s₂·A_ij/‖A‖², of the new s₂; else s̄₂ passes


@triton.jit
def _cap(phi, scale, out, norm, K, gain, slope, N: tl.constexpr, BK: tl.constexpr):
    """out [3] of scale [3], and norm [] = ‖A‖_F. phi φ [2N + N², K]; slope c·√K."""
    squares = tl.zeros((BK,), tl.float32)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        for i in tl.static_range(N):
            for j in tl.static_range(i):
                skew = _skew(phi, i, j, column, K, N)
                # A_ij² + A_ji²
                squares += 2 * skew * skew
    length = tl.sqrt(tl.sum(squares, axis=0))
    tl.store(norm, length)
    last = tl.load(scale + 2).to(tl.float32)
    bound = tl.maximum(tl.abs(last) * slope * length, gain, propagate_nan=tl.PropagateNan.ALL)
    for i in tl.static_range(2):
        tl.store(out + i, tl.load(scale + i))
    tl.store(out + 2, last * (gain / bound))


@triton.jit
def _skew(phi, i, j, column, K, N: tl.constexpr):
    """A_ij at these columns, in fp32; 0 outside."""
    first = phi + 2 * N * K + column
    upper = tl.load(first + (i * N + j) * K, mask=column < K, other=0.0).to(tl.float32)
    return (upper - tl.load(first + (j * N + i) * K, mask=column < K, other=0.0).to(tl.float32)) / 2


@triton.jit
def _cap_backward(phi, scale, norm, dout, dphi, dscale, K, gain, slope, N: tl.constexpr, BK: tl.constexpr):
    """Adds to dphi [2N + N², K], and writes dscale [3]; arguments as of `_cap`, dout [3]."""
    column = tl.program_id(0) * BK + tl.arange(0, BK)
    last, length = tl.load(scale + 2).to(tl.float32), tl.load(norm)
    given = tl.load(dout + 2).to(tl.float32)
    bound = tl.abs(last) * slope * length
    free = bound < gain
    # −s̄₂·s₂/‖A‖²; a bound that is NaN is not free, and shows
    pull = tl.where(free, 0.0, -given * last * (gain / bound) / (length * length))
    for i in tl.static_range(N):
        for j in tl.static_range(N):
            gradient = pull * _skew(phi, i, j, column, K, N)
            place = dphi + (2 * N + i * N + j) * K + column
            gradient += tl.load(place, mask=column < K, other=0.0).to(tl.float32)
            tl.store(place, gradient.to(dphi.dtype.element_ty), mask=column < K)
    if tl.program_id(0) == 0:
        for i in tl.static_range(2):
            tl.store(dscale + i, tl.load(dout + i).to(dscale.dtype.element_ty))
        passed = tl.where(free, given, tl.where(bound == bound, 0.0, bound))
        tl.store(dscale + 2, passed.to(dscale.dtype.element_ty))


def cap_of(scale: Tensor, phi: Tensor, n: int, gain: float, slope: float) -> tuple[Tensor, Tensor]:
    """The capped scale [3] of scale [3] and phi [2n + n², n·D], and ‖skew φ_res‖ [] in fp32."""
    out, norm = torch.empty_like(scale), torch.empty((), dtype=torch.float32, device=phi.device)
    width = phi.shape[1]
    _cap[(1,)](phi, scale, out, norm, width, gain, slope * width**0.5, N=n, BK=1024)
    return out, norm


def cap_gradient(
    scale: Tensor, phi: Tensor, norm: Tensor, dout: Tensor, dphi: Tensor, n: int, gain: float, slope: float
) -> Tensor:
    """The gradient of scale [3] from that of the capped one, dout [3]; phi's is added to dphi."""
    dscale, width = torch.empty_like(scale), phi.shape[1]
    _cap_backward[(triton.cdiv(width, 256),)](
        phi, scale, norm, dout, dphi, dscale, width, gain, slope * width**0.5, N=n, BK=256
    )
    return dscale


# The backend.


@operator
class _Coefficients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phi, scale, bias, eps, hand_on, gain, slope):
        x, phi, scale, bias = (y.contiguous() for y in (x, phi, scale, bias))
        given, norm = scale, None
        if gain is not None:
            scale, norm = cap_of(given, phi, x.shape[-2], gain, slope)
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
        ctx.save_for_backward(x, phi, scale, bias, raw, inverse, *(() if norm is None else (given, norm)))
        ctx.cap = (gain, slope)
        return pre, post, res, *([x] if hand_on else [])

    @staticmethod
    @first_order
    def backward(ctx, dpre, dpost, dres, more=None):
        x, phi, scale, bias, raw, inverse, *capped = ctx.saved_tensors
        upstream = tuple(y.contiguous() for y in (dpre, dpost, dres))
        dproduct, along, dscale, dbias = numbers_gradients(x, phi, scale, bias, raw, inverse, upstream)
        more = None if more is None else more.contiguous()
        dx, dphi = streams_gradients(x, phi, dproduct, along, more)
        if capped:
            given, norm = capped
            dscale = cap_gradient(given, phi, norm, dscale, dphi, x.shape[-2], *ctx.cap)
        return dx, dphi, dscale, dbias, *(None,) * 4


def hyper_coefficients_triton(
    streams: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    cap: tuple[float, float] | None,
    eps: float,
    hand_on: bool,
) -> tuple[Tensor, ...]:
    """Compute `kernels.hyper_coefficients` on a GPU: memory-bound, the streams are read once each way.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m] in fp32;
    with hand_on the streams, fourth.
    """
    if torch.compiler.is_compiling() and hand_on:  # the compiler adds gradients up itself
        return *hyper_coefficients_triton(streams, phi, scale, bias, cap=cap, eps=eps, hand_on=False), streams
    returns = (True,) * (4 if hand_on else 3)
    return _Coefficients(streams, phi, scale, bias, eps, hand_on, *(cap or (None, None)), returns=returns)
