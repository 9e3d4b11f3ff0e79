"""Gates in one pass over their inputs each way; saved: the inputs alone.

    swiglu       h = g·σ(g)·u;   ū = h̄·g·σ(g),   ḡ = h̄·u·σ(g)·(1 + g·(1 − σ(g)))
    delta_gates  g = −e^a·softplus(z), z = x + b;   x̄ = −ḡ·e^a·σ(z),   b̄ = Σ x̄,   ā = Σ ḡ·g
                 β = top·σ(s);   s̄ = β̄·top·σ(s)·(1 − σ(s))
    gated_norm   y = n ⊙ gain ⊙ σ(l), n = r·o, r = (mean(o²) + ε)^(−½);   n̄ = ȳ ⊙ gain ⊙ σ(l)
                 ō = r·(n̄ − mean(n̄ ⊙ n)·n),   l̄ = ȳ ⊙ n ⊙ gain ⊙ σ(l) ⊙ (1 − σ(l)),   gain's: Σ ȳ ⊙ σ(l) ⊙ n

Rows of the inputs may be apart, as those of parts of one product are. Sums over tokens are partial sums of every
program, added in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import sigmoid, sum_rows
from kernels.triton_common.operators import operator


@triton.jit
def _place(ROWS, WIDTH, BR: tl.constexpr, BC: tl.constexpr):
    """The program's rows [BR, 1], columns [1, BC], and which pairs exist."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    return row[:, None], column[None], (row < ROWS)[:, None] & (column < WIDTH)[None]


@triton.jit
def _swiglu_forward(gate, up, out, ROWS, WIDTH, GATE_ROW, UP_ROW, BR: tl.constexpr, BC: tl.constexpr):
    """h of gate and up.

    inputs     gate, up [ROWS, WIDTH], rows GATE_ROW and UP_ROW numbers apart
    outputs    out h [ROWS, WIDTH]
    constants  BR rows and BC columns of a program
    """
    row, column, there = _place(ROWS, WIDTH, BR, BC)
    g = tl.load(gate + row * GATE_ROW + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * UP_ROW + column, mask=there, other=0.0).to(tl.float32)
    h = g * sigmoid(g) * u
    tl.store(out + row * WIDTH + column, h.to(out.dtype.element_ty), mask=there)


@triton.jit
def _swiglu_backward(
    gate, up, dout, dgate, dup, ROWS, WIDTH, GATE_ROW, UP_ROW, BR: tl.constexpr, BC: tl.constexpr
):
    """The gradients of both inputs of `_swiglu_forward`.

    inputs     gate, up as there; dout h̄ [ROWS, WIDTH]
    outputs    dgate, dup [ROWS, WIDTH]
    constants  as there
    """
    row, column, there = _place(ROWS, WIDTH, BR, BC)
    g = tl.load(gate + row * GATE_ROW + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * UP_ROW + column, mask=there, other=0.0).to(tl.float32)
    place = row * WIDTH + column
    d = tl.load(dout + place, mask=there, other=0.0).to(tl.float32)
    s = sigmoid(g)
    tl.store(dup + place, (d * g * s).to(dup.dtype.element_ty), mask=there)
    tl.store(dgate + place, (d * u * s * (1 + g * (1 - s))).to(dgate.dtype.element_ty), mask=there)


ROWS, COLUMNS = 4, 512
"""Of a program: 16 numbers a thread of each input, which a memory-bound kernel needs no more of."""


def _rows(x: Tensor) -> Tensor:
    """x [..., F] as rows [M, F] whose numbers are neighbours; a copy where no view has that."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _launch(kernel, gate: Tensor, up: Tensor, *more: Tensor) -> None:
    count, width = gate.shape
    grid = (triton.cdiv(count, ROWS), triton.cdiv(width, COLUMNS))
    sizes = {"ROWS": count, "WIDTH": width, "GATE_ROW": gate.stride(0), "UP_ROW": up.stride(0)}
    kernel[grid](gate, up, *more, **sizes, BR=ROWS, BC=COLUMNS, num_warps=4)


# The gates of a delta rule: tiles of BR tokens and the channels of one rate, or of BC rates of one channel each.


@triton.jit
def softplus(x):
    """log(1 + e^x) of x [...] in fp32, elementwise, to a few roundings of it also where it is small."""
    e = tl.exp(-tl.abs(x))
    u = 1 + e
    # log(1 + e) = log(u)·e / (u − 1): what rounding takes from u, the quotient returns (Kahan).
    small = u == 1
    return tl.where(x > 0, x, 0.0) + tl.where(small, e, tl.log(u) * e / tl.where(small, 1.0, u - 1))


@triton.jit
def _gate_tile(ROWS, RATES, EACH: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """The program's rows [BR, 1], columns and their rates [1, BC], which pairs exist, and which columns [BC]."""
    row = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    number = tl.arange(0, BC)
    if EACH == 1:
        column = tl.program_id(1) * BC + number
        rate = column
        exists = column < RATES
    else:
        column = tl.program_id(1) * EACH + number
        rate = tl.zeros((BC,), tl.int32) + tl.program_id(1)
        exists = number < EACH
    return row, column[None], rate[None], (row < ROWS) & exists[None], exists


@triton.jit
def _delta_gates_forward(
    raw, log_rate, bias, strength, g, beta, top, ROWS, RATES, RAW_ROW, STRENGTH_ROW,
    EACH: tl.constexpr, HEADS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """g of a tile, and β of its tokens in the first tile along the columns.

    inputs     raw [ROWS, RATES·EACH], rows RAW_ROW apart; log_rate [RATES]; bias [RATES·EACH]; strength [ROWS, HEADS],
               rows STRENGTH_ROW apart; top
    outputs    g [ROWS, RATES·EACH], beta [ROWS, HEADS], in fp32
    constants  EACH channels of a rate; BR rows; BC ≥ EACH columns, or any number where EACH = 1; BH ≥ HEADS
    """
    row, column, rate, there, _ = _gate_tile(ROWS, RATES, EACH, BR, BC)
    x = tl.load(raw + row * RAW_ROW + column, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    a = tl.load(log_rate + rate, mask=there, other=0.0).to(tl.float32)
    tl.store(g + row * (RATES * EACH) + column, -tl.exp(a) * softplus(x), mask=there)
    if tl.program_id(1) == 0:
        head = tl.arange(0, BH)[None]
        has = (row < ROWS) & (head < HEADS)
        s = tl.load(strength + row * STRENGTH_ROW + head, mask=has, other=0.0).to(tl.float32)
        tl.store(beta + row * HEADS + head, top * sigmoid(s), mask=has)


@triton.jit
def _delta_gates_backward(
    raw, log_rate, bias, strength, dg, dbeta, draw, dstrength, parts, top, ROWS, RATES, RAW_ROW, STRENGTH_ROW,
    EACH: tl.constexpr, HEADS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """The gradients of `_delta_gates_forward`, and a tile's part of those of log_rate and bias.

    inputs     as there; dg [ROWS, RATES·EACH], dbeta [ROWS, HEADS]
    outputs    draw like dg, dstrength like dbeta; parts [tiles of rows, RATES·EACH of bias, then RATES of log_rate]
    constants  as there
    """
    row, column, rate, there, exists = _gate_tile(ROWS, RATES, EACH, BR, BC)
    x = tl.load(raw + row * RAW_ROW + column, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    a = tl.load(log_rate + rate, mask=there, other=0.0).to(tl.float32)
    d = tl.load(dg + row * (RATES * EACH) + column, mask=there, other=0.0).to(tl.float32)
    slope = -tl.exp(a) * d
    of_rate, d = slope * softplus(x), slope * sigmoid(x)
    tl.store(draw + row * (RATES * EACH) + column, d.to(draw.dtype.element_ty), mask=there)
    part = parts + tl.program_id(0).to(tl.int64) * (RATES * EACH + RATES)
    place = tl.sum(column, axis=0)
    tl.store(part + place, tl.sum(d, axis=0), mask=exists)
    of_rate = tl.sum(of_rate, axis=0)
    if EACH == 1:
        tl.store(part + RATES + place, of_rate, mask=exists)
    else:
        tl.store(part + RATES * EACH + tl.program_id(1), tl.sum(of_rate, axis=0))
    if tl.program_id(1) == 0:
        head = tl.arange(0, BH)[None]
        has = (row < ROWS) & (head < HEADS)
        s = sigmoid(tl.load(strength + row * STRENGTH_ROW + head, mask=has, other=0.0).to(tl.float32))
        change = tl.load(dbeta + row * HEADS + head, mask=has, other=0.0).to(tl.float32) * top * s * (1 - s)
        tl.store(dstrength + row * HEADS + head, change.to(dstrength.dtype.element_ty), mask=has)


def _token_rows(x: Tensor) -> Tensor:
    """x [B, T, ...] as rows [B·T, ·] whose numbers are neighbours; a copy where no view has that."""
    return _rows(x.flatten(2))


def _launch_gates(
    kernel, raw: Tensor, log_rate: Tensor, bias: Tensor, strength: Tensor, *more: Tensor, top
) -> None:
    rows, strengths, rates = _token_rows(raw), _token_rows(strength), log_rate.numel()
    each, columns, tile = _gate_tiles(rates, bias)
    heads = strengths.shape[1]
    grid = (triton.cdiv(len(rows), tile), rates if each > 1 else triton.cdiv(rates, columns))
    sizes = {
        "ROWS": len(rows),
        "RATES": rates,
        "RAW_ROW": rows.stride(0),
        "STRENGTH_ROW": strengths.stride(0),
    }
    constants = {"EACH": each, "HEADS": heads, "BR": tile, "BC": columns, "BH": triton.next_power_of_2(heads)}
    kernel[grid](
        rows,
        log_rate.contiguous(),
        bias.contiguous(),
        strengths,
        *more,
        top,
        **sizes,
        **constants,
        num_warps=4,
    )


def _gate_tiles(rates: int, bias: Tensor) -> tuple[int, int, int]:
    """The channels of a rate, and a tile's columns and rows: 16 numbers a thread, and no more than 128 rows."""
    each = bias.numel() // rates
    columns = triton.next_power_of_2(each) if each > 1 else min(128, triton.next_power_of_2(rates))
    return each, columns, min(128, max(16, 2048 // columns))


@operator
class _DeltaGates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, raw, log_rate, bias, strength, top):
        ctx.save_for_backward(raw, log_rate, bias, strength)
        ctx.top = top
        g, beta = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in (raw, strength))
        _launch_gates(_delta_gates_forward, raw, log_rate, bias, strength, g, beta, top=top)
        return g, beta

    @staticmethod
    @first_order
    def backward(ctx, dg, dbeta):
        raw, log_rate, bias, strength = ctx.saved_tensors
        draw, dstrength = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (raw, strength))
        *_, rows = _gate_tiles(log_rate.numel(), bias)
        tiles = triton.cdiv(raw.shape[0] * raw.shape[1], rows)
        parts = torch.empty(tiles, bias.numel() + log_rate.numel(), dtype=torch.float32, device=raw.device)
        given = (dg.contiguous(), dbeta.contiguous(), draw, dstrength, parts)
        _launch_gates(_delta_gates_backward, raw, log_rate, bias, strength, *given, top=ctx.top)
        of_bias, of_rate = sum_rows(parts, bias.dtype).split([bias.numel(), log_rate.numel()])
        return draw, of_rate.view(log_rate.shape), of_bias.view(bias.shape), dstrength, None


def delta_gates_triton(
    raw: Tensor, log_rate: Tensor, bias: Tensor, strength: Tensor, *, top: float
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.delta_gates` on a GPU. raw [B, T, *shape], strength [B, T, ...] -> g, β in fp32."""
    return _DeltaGates(raw, log_rate, bias, strength, top, returns=(True, True))


# The norm of a head's output and its gate: tiles of BR heads of tokens, each whole.


@triton.jit
def _norm_tile(
    o, gain, logits, ROWS, HEADS, LOGIT_ROW, eps, WIDTH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr
):
    """A tile's places [BR, BK] and which exist, n, r [BR, 1], the gain [1, BK] and σ(l), 1 where there is no l."""
    row = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    column = tl.arange(0, BK)[None]
    there = (row < ROWS) & (column < WIDTH)
    place = row * WIDTH + column
    x = tl.load(o + place, mask=there, other=0.0).to(tl.float32)
    r = tl.where(row < ROWS, tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + eps), 0.0)
    scale = tl.load(gain + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    gate = tl.full((BR, BK), 1.0, tl.float32)
    if logits is not None:
        at = (row // HEADS) * LOGIT_ROW + (row % HEADS) * WIDTH + column
        gate = sigmoid(tl.load(logits + at, mask=there, other=0.0).to(tl.float32))
    return place, there, x * r, r, scale, gate


@triton.jit
def _gated_norm_forward(
    o, gain, logits, y, ROWS, HEADS, LOGIT_ROW, eps, WIDTH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr
):
    """y of a tile.

    inputs     o [ROWS, WIDTH], HEADS rows a token; gain [WIDTH]; logits [tokens, HEADS·WIDTH], rows LOGIT_ROW apart, or
               None; eps
    outputs    y [ROWS, WIDTH]
    constants  BR rows and BK ≥ WIDTH columns of a program
    """
    place, there, n, _, scale, gate = _norm_tile(o, gain, logits, ROWS, HEADS, LOGIT_ROW, eps, WIDTH, BR, BK)
    tl.store(y + place, (n * scale * gate).to(y.dtype.element_ty), mask=there)


@triton.jit
def _gated_norm_backward(
    o, gain, logits, dy, do, dlogits, parts, ROWS, HEADS, LOGIT_ROW, eps,
    WIDTH: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradients of `_gated_norm_forward`, and a tile's part of the gain's.

    inputs     as there; dy [ROWS, WIDTH]
    outputs    do and dlogits (or None) [ROWS, WIDTH]; parts [tiles, WIDTH]
    constants  as there
    """
    place, there, n, r, scale, gate = _norm_tile(o, gain, logits, ROWS, HEADS, LOGIT_ROW, eps, WIDTH, BR, BK)
    d = tl.load(dy + place, mask=there, other=0.0).to(tl.float32)
    if logits is not None:
        slope = d * n * scale * gate * (1 - gate)
        tl.store(dlogits + place, slope.to(dlogits.dtype.element_ty), mask=there)
    d *= gate
    column = tl.arange(0, BK)
    tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(d * n, axis=0), mask=column < WIDTH)
    d *= scale
    d = r * (d - tl.sum(d * n, axis=1, keep_dims=True) / WIDTH * n)
    tl.store(do + place, d.to(do.dtype.element_ty), mask=there)


def _launch_norm(
    kernel, o: Tensor, gain: Tensor, logits: Tensor | None, *more: Tensor | None, eps: float
) -> None:
    rows, width = o.numel() // o.shape[-1], o.shape[-1]
    heads = o.shape[-2] if o.dim() > 1 else 1
    flat = None if logits is None else _rows(logits.flatten(-2) if logits.dim() > 1 else logits)
    sizes = {"ROWS": rows, "HEADS": heads, "LOGIT_ROW": 0 if flat is None else flat.stride(0), "eps": eps}
    tile = _norm_rows(width)
    kernel[(triton.cdiv(rows, tile),)](
        o.contiguous(), gain.contiguous(), flat, *more, **sizes,
        WIDTH=width, BR=tile, BK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip


def _norm_rows(width: int) -> int:
    """The rows of a tile of norms: 16 numbers a thread."""
    return max(1, 2048 // triton.next_power_of_2(width))


@operator
class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, gain, logits, eps):
        ctx.save_for_backward(o, gain, logits)
        ctx.eps = eps
        y = torch.empty(o.shape, dtype=o.dtype, device=o.device)
        _launch_norm(_gated_norm_forward, o, gain, logits, y, eps=eps)
        return y

    @staticmethod
    @first_order
    def backward(ctx, dy):
        o, gain, logits = ctx.saved_tensors
        do, dlogits = (
            None if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (o, logits)
        )
        tiles = triton.cdiv(o.numel() // o.shape[-1], _norm_rows(o.shape[-1]))
        parts = torch.empty(tiles, o.shape[-1], dtype=torch.float32, device=o.device)
        given = (dy.contiguous(), do, dlogits, parts)
        _launch_norm(_gated_norm_backward, o, gain, logits, *given, eps=ctx.eps)
        return do, sum_rows(parts, gain.dtype), dlogits, None


def gated_norm_triton(o: Tensor, gain: Tensor, logits: Tensor | None, *, eps: float) -> Tensor:
    """Compute `kernels.gated_norm` on a GPU. o [..., K], gain [K], logits [..., K] or None -> [..., K]."""
    return _GatedNorm(o, gain, logits, eps)


# SiLU(gate) ⊙ up.


@operator
class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        _launch(_swiglu_forward, _rows(gate), _rows(up), out)
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        gate, up = ctx.saved_tensors
        dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
        _launch(_swiglu_backward, _rows(gate), _rows(up), dout.contiguous(), dgate, dup)
        return dgate, dup


def swiglu_triton(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `kernels.swiglu` on a GPU: memory-bound, every number read once each way. gate, up [..., F]."""
    return _SwiGLU(gate, up)
