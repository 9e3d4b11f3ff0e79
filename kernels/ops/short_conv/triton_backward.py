"""The gradients of the short convolution, in the notation of triton_ops.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.short_conv.triton_tiles import (
    CHANNEL_TILES,
    CHUNK,
    gradient_before_activation,
    load_inputs,
    state_grid,
    state_tile,
)
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


@triton.jit
def _backward(
    x, weight, state, dy, dafter, dx, dweight, table, cu, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx, and the part of every tile in the weight's gradient.

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
            gradient += tap[None] * gradient_before_activation(
                x, weight, state, dy, later, begin, end, sequence, channel, in_width, D, TAPS, SILU
            )
        mask = (token < end)[:, None] & in_width[None]
        tl.store(dx + token[:, None] * D + channel[None], gradient.to(dx.dtype.element_ty), mask=mask)
        # dw_i = Σ_t dpre_t ⊙ x_{t−(k−1)+i}
        own = gradient_before_activation(
            x, weight, state, dy, token, begin, end, sequence, channel, in_width, D, TAPS, SILU
        )
        for i in tl.static_range(TAPS):
            row = load_inputs(
                x, state, token - (TAPS - 1) + i, begin, end, sequence, channel, in_width, D, TAPS
            )
            tl.store(part + i, tl.sum(own * row, axis=0), mask=in_width)


@triton.jit
def _state_gradient(
    x, weight, state, dy, dafter, dstate, cu, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dstate_c = Σ_{r=0…c} w_{c−r} ⊙ dpre_r, r from the sequence's start, plus dafter of inputs still in that state.

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
        gradient += tap[None] * gradient_before_activation(
            x, weight, state, dy, token, begin, end, sequence, channel, in_width, D, TAPS, SILU
        )
    tl.store(dstate + place + column[:, None], gradient.to(dstate.dtype.element_ty), mask=known)


_backward_tuned = Tuned(_backward, CHANNEL_TILES, ["D", "TAPS"])


def short_conv_backward(
    x: Tensor, weight: Tensor, state: Tensor | None, dy: Tensor, dafter: Tensor, table: Tensor, cu: Tensor, *,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Compute dx, the parts [rows of the table, D, k] of the weight's gradient in fp32, and the given state's gradient.

    dy [B, T, D] and dafter [N, D, k−1] are the gradients of the outputs and of the states after; all contiguous.
    """
    taps, width = weight.shape[1], x.shape[2]
    dx, options = torch.empty_like(x), {"TAPS": taps, "SILU": silu}
    parts = torch.empty(len(table), width, taps, dtype=torch.float32, device=x.device)
    _backward_tuned[lambda meta: (len(table), triton.cdiv(width, meta["BD"]))](
        x, weight, state, dy, dafter, dx, parts, table, cu, width, **options, BT=CHUNK
    )
    dstate = None if state is None else torch.empty_like(state)
    if state is not None and taps > 1:
        _state_gradient[state_grid(cu, width)](
            x, weight, state, dy, dafter, dstate, cu, width, **options, **state_tile(taps)
        )
    return dx, parts, dstate
