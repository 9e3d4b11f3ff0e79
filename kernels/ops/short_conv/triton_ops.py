"""Short convolution as one pass over x forward and one over x and dy backward.

A program has a tile of BT tokens of one sequence and BD channels. Row t of tap i is x_{t−(k−1)+i}, read from x
or, before the sequence's first token, from the state that came in; the k rows of neighbouring taps overlap, so
that all but one come from the cache.

    forward   saved: inputs alone. y = act(Σ_i w_i ⊙ row_i); a small kernel copies the last k−1 inputs
    backward  the pre-activation of rows t … t+k−1 is recomputed:
              dpre_t = dy_t · act'(pre_t)    dx_t = Σ_i w_i ⊙ dpre_{t+(k−1)−i} + (state after)'s gradient
              dw_i = Σ_t dpre_t ⊙ row_i as one partial sum a tile, added in a fixed order

One token without gradients, as in decoding, has a kernel of its own (triton_step.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.short_conv.triton_step import short_conv_one_token
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds, sigmoid, sum_rows
from kernels.triton_common.gradients import first_order
from kernels.triton_common.tuning import Tuned

CHUNK = 32
"""Tokens of a tile."""


@triton.jit
def _inputs(x, state, token, begin, end, sequence, channel, in_width, D, TAPS: tl.constexpr):
    """Row [BT, BD] of inputs at these tokens, which may lie up to TAPS − 1 before the sequence's first."""
    inside = (token >= begin) & (token < end)
    row = tl.load(x + token[:, None] * D + channel[None], mask=inside[:, None] & in_width[None], other=0.0)
    row = row.to(tl.float32)
    if state is not None:
        column = token - begin + TAPS - 1
        place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
        before = (token < begin) & (column >= 0)
        row += tl.load(state + place, mask=before[:, None] & in_width[None], other=0.0).to(tl.float32)
    return row


@triton.jit
def _taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS: tl.constexpr):
    """Σ_i w_i ⊙ row_i at these tokens, before the activation."""
    total = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    # Σ_i w_i ⊙ x_{t−(k−1)+i}
    for i in tl.static_range(TAPS):
        tap = tl.load(weight + channel * TAPS + i, mask=in_width, other=0.0).to(tl.float32)
        row = _inputs(x, state, token - (TAPS - 1) + i, begin, end, sequence, channel, in_width, D, TAPS)
        total += row * tap[None]
    return total


@triton.jit
def _forward(
    x, weight, state, y, table, cu, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """y [T, D] of x [T, D], weight [D, TAPS] and state [N, D, TAPS−1] or None; layout: table, cu; a tile [BT, BD]."""
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BT)
    if sequence >= 0:
        channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
        in_width = channel < D
        token = first + tl.arange(0, BT)
        # y_t = act( Σ_i w_i ⊙ x_{t−(k−1)+i} )
        out = _taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS)
        if SILU:
            out = out * sigmoid(out)
        mask = (token < end)[:, None] & in_width[None]
        tl.store(y + token[:, None] * D + channel[None], out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _last_inputs(x, state, after, cu, D, TAPS: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    """after [N, D, TAPS−1]: the last inputs of a sequence, older first, from the state where it is too short."""
    sequence = tl.program_id(0).to(tl.int64)
    begin = tl.load(cu + sequence).to(tl.int64)
    end = tl.load(cu + sequence + 1).to(tl.int64)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    column = tl.arange(0, BK)
    # x_{T−(k−1)+c} for column c
    token = end - (TAPS - 1) + column
    row = _inputs(x, state, token, begin, end, sequence, channel, channel < D, D, TAPS)
    place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
    mask = (column < TAPS - 1)[:, None] & (channel < D)[None]
    tl.store(after + place, row.to(after.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_before_activation(
    x, weight, state, dy, token, begin, end, sequence, channel, in_width, D,
    TAPS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """dpre at these tokens; 0 outside the sequence."""
    mask = ((token >= begin) & (token < end))[:, None] & in_width[None]
    # dpre_t = dy_t · act'(pre_t),  silu'(x) = σ(x)·(1 + x·(1 − σ(x)))
    gradient = tl.load(dy + token[:, None] * D + channel[None], mask=mask, other=0.0).to(tl.float32)
    if SILU:
        pre = _taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS)
        gate = sigmoid(pre)
        gradient *= gate * (1 + pre * (1 - gate))
    return gradient


@triton.jit
def _backward(
    x, weight, state, dy, dafter, dx, dweight, table, cu, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx, and of every tile its part of the weight's gradient.

    inputs     x, dy [T, D]; weight [D, TAPS]; state, or None, and dafter [N, D, TAPS−1]
    outputs    dx [T, D]; dweight [rows of the table, D, TAPS]
    layout     table, cu
    sizes      D channels
    constants  TAPS; SILU; BT, BD sides of a tile
    """
    chunk = tl.program_id(0).to(tl.int64)
    sequence, begin, end, first = chunk_bounds(table, cu, chunk, BT)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    in_width = channel < D
    part = dweight + (chunk * D + channel) * TAPS
    if sequence < 0:
        for i in tl.static_range(TAPS):
            tl.store(part + i, tl.zeros((BD,), tl.float32), mask=in_width)
    else:
        token = first + tl.arange(0, BT)
        # dx_t = (state after)'s gradient + Σ_i w_i ⊙ dpre_{t+(k−1)−i}
        column = token - end + TAPS - 1  # of the state after, for the last inputs
        place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
        last = (column >= 0) & (token < end)
        gradient = tl.load(dafter + place, mask=last[:, None] & in_width[None], other=0.0).to(tl.float32)
        for i in tl.static_range(TAPS):
            tap = tl.load(weight + channel * TAPS + i, mask=in_width, other=0.0).to(tl.float32)
            later = token + (TAPS - 1 - i)
            gradient += tap[None] * _gradient_before_activation(
                x, weight, state, dy, later, begin, end, sequence, channel, in_width, D, TAPS, SILU
            )
        mask = (token < end)[:, None] & in_width[None]
        tl.store(dx + token[:, None] * D + channel[None], gradient.to(dx.dtype.element_ty), mask=mask)
        # dw_i = Σ_t dpre_t ⊙ x_{t−(k−1)+i}
        own = _gradient_before_activation(
            x, weight, state, dy, token, begin, end, sequence, channel, in_width, D, TAPS, SILU
        )
        for i in tl.static_range(TAPS):
            row = _inputs(x, state, token - (TAPS - 1) + i, begin, end, sequence, channel, in_width, D, TAPS)
            tl.store(part + i, tl.sum(own * row, axis=0), mask=in_width)


@triton.jit
def _state_gradient(
    x, weight, state, dy, dafter, dstate, cu, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dstate_c = Σ_{r=0…c} w_{c−r} ⊙ dpre_r, r counted from the sequence's start, or moved on in the state after.

    inputs     x, dy [T, D]; weight [D, TAPS]; state, dafter [N, D, TAPS−1]
    outputs    dstate [N, D, TAPS−1]
    layout     cu
    sizes      D channels
    constants  TAPS; SILU; BK ≥ TAPS − 1; BD channels a program
    """
    sequence = tl.program_id(0).to(tl.int64)
    begin = tl.load(cu + sequence).to(tl.int64)
    end = tl.load(cu + sequence + 1).to(tl.int64)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    in_width = channel < D
    column = tl.arange(0, BK)
    known = (column < TAPS - 1)[:, None] & in_width[None]
    moved = column - (end - begin)  # to this column, where the sequence is shorter than the window
    place = (sequence * D + channel[None]) * (TAPS - 1)
    gradient = tl.load(dafter + place + moved[:, None], mask=(moved >= 0)[:, None] & known, other=0.0).to(
        tl.float32
    )
    # Σ_r w_{c−r} ⊙ dpre_r, with i = c − r
    for i in tl.static_range(TAPS - 1):
        token = begin + column - i
        tap = tl.load(weight + channel * TAPS + i, mask=in_width, other=0.0).to(tl.float32)
        gradient += tap[None] * _gradient_before_activation(
            x, weight, state, dy, token, begin, end, sequence, channel, in_width, D, TAPS, SILU
        )
    tl.store(dstate + place + column[:, None], gradient.to(dstate.dtype.element_ty), mask=known)


_TILES = [
    triton.Config({"BD": width}, num_warps=warps) for width, warps in ((64, 4), (128, 4), (32, 2), (256, 8))
]
_forward_tuned = Tuned(_forward, _TILES, ["D", "TAPS"])
_backward_tuned = Tuned(_backward, _TILES, ["D", "TAPS"])


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, state, cu_seqlens, silu):
        x, weight = x.contiguous(), weight.contiguous()
        state = None if state is None else state.contiguous()
        taps, width = weight.shape[1], x.shape[2]
        cu, table = boundaries(x, cu_seqlens), chunk_table(x, cu_seqlens, CHUNK)
        y = torch.empty_like(x)
        after = x.new_empty(len(cu) - 1, width, taps - 1)
        _forward_tuned[lambda meta: (len(table), triton.cdiv(width, meta["BD"]))](
            x, weight, state, y, table, cu, width, TAPS=taps, SILU=silu, BT=CHUNK
        )
        if taps > 1:
            _last_inputs[_grid_of_states(cu, width)](
                x, state, after, cu, width, TAPS=taps, **_state_tile(taps)
            )
        ctx.save_for_backward(x, weight, state, cu, table)
        ctx.silu = silu
        return y, after

    @staticmethod
    @first_order
    def backward(ctx, dy, dafter):
        x, weight, state, cu, table = ctx.saved_tensors
        taps, width = weight.shape[1], x.shape[2]
        dy, dafter, dx = dy.contiguous(), dafter.contiguous(), torch.empty_like(x)
        parts = torch.empty(len(table), width, taps, dtype=torch.float32, device=x.device)
        options = {"TAPS": taps, "SILU": ctx.silu}
        _backward_tuned[lambda meta: (len(table), triton.cdiv(width, meta["BD"]))](
            x, weight, state, dy, dafter, dx, parts, table, cu, width, **options, BT=CHUNK
        )
        dstate = None if state is None else torch.empty_like(state)
        if state is not None and taps > 1:
            _state_gradient[_grid_of_states(cu, width)](
                x, weight, state, dy, dafter, dstate, cu, width, **options, **_state_tile(taps)
            )
        return dx, sum_rows(parts, weight.dtype), dstate, None, None


def _state_tile(taps: int) -> dict[str, int]:
    return {"BK": triton.next_power_of_2(max(taps - 1, 1)), "BD": 64}


def _grid_of_states(cu: Tensor, width: int) -> tuple[int, int]:
    return len(cu) - 1, triton.cdiv(width, 64)


def short_conv_triton(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.short_conv` on a GPU: memory-bound, each input read once forward and twice backward.

    A single token without gradients has a kernel of its own.
    """
    moves = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, state)
    )
    if x.shape[1] == 1 and cu_seqlens is None and not moves:
        return short_conv_one_token(x, weight, state, activation == "silu")
    return _ShortConv.apply(x, weight, state, cu_seqlens, activation == "silu")
