"""The gradients of the short convolution, in the notation of triton_ops.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.short_conv.triton_tiles import (
    CHUNK,
    load_inputs,
    load_taps,
    sequence_bounds,
    state_tile,
    taps_sum,
    tile_bounds,
)
from kernels.triton_common.device import sigmoid
from kernels.triton_common.tuning import Tuned


@triton.jit
def _backward(
    x, weight, state, dy, dafter, dx, dweight, table, cu, TIME, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """dx, and the part of every tile in the weight's gradient.

    inputs     x, dy [T, D]; weight [D, TAPS]; state and dafter [N, D, TAPS−1], or None
    outputs    dx [T, D]; dweight [tiles along the tokens, D, TAPS]
    layout     table, cu; or None for a batch of sequences of TIME tokens
    sizes      TIME; D channels
    constants  TAPS; SILU; BT tokens of a tile, in rows of RUN; BD channels
    """
    tile = tl.program_id(0)
    sequence, begin, end, first = tile_bounds(table, cu, tile, TIME, BT)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    in_width = channel < D
    sums = ()
    for _ in tl.static_range(TAPS):
        sums += (tl.zeros((BT // RUN, BD), tl.float32),)
    if sequence >= 0:
        token = first + tl.arange(0, BT // RUN) * RUN
        taps = load_taps(weight, channel, in_width, TAPS)
        rows = ()
        for i in tl.static_range(TAPS - 1):
            before = token + (i - (TAPS - 1))
            rows += (load_inputs(x, state, before, begin, end, sequence, channel, in_width, D, TAPS),)
        gradients = ()
        for i in tl.static_range(RUN + TAPS - 1):
            now = token + i  # none before the sequence's first: no state
            rows += (load_inputs(x, None, now, begin, end, sequence, channel, in_width, D, TAPS),)
            gradients += (
                gradient_before_activation(
                    taps, rows, i, dy, now, begin, end, channel, in_width, D, TAPS, SILU
                ),
            )
            if i < RUN:
                # dw_i = Σ_t dpre_t ⊙ x_{t−(k−1)+i}
                sums = added_products(sums, gradients[i], rows, i, TAPS)
            if i >= TAPS - 1:
                # dx_t = Σ_i w_i ⊙ dpre_{t+(k−1)−i} + (state after)'s gradient
                out = taps[TAPS - 1] * gradients[i - (TAPS - 1)]
                for j in tl.static_range(TAPS - 1):
                    out += taps[j] * gradients[i - j]
                earlier = now - (TAPS - 1)
                mask = (earlier < end)[:, None] & in_width[None]
                if dafter is not None:
                    column = earlier - end + TAPS - 1  # of the state after, for the last inputs
                    place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
                    out += tl.load(dafter + place, mask=(column >= 0)[:, None] & mask, other=0.0).to(
                        tl.float32
                    )
                tl.store(dx + earlier[:, None] * D + channel[None], out.to(dx.dtype.element_ty), mask=mask)
    part = dweight + (tile.to(tl.int64) * D + channel) * TAPS
    for i in tl.static_range(TAPS):
        tl.store(part + i, tl.sum(sums[i], axis=0), mask=in_width)


@triton.jit
def added_products(sums, gradient, rows, FIRST: tl.constexpr, TAPS: tl.constexpr):
    """The sums of all taps, TAPS tiles [rows, BD] in fp32, each with the gradient times its tap's row added.

    sums: TAPS tiles [rows, BD]; gradient [rows, BD]; rows: tiles [rows, BD] of inputs, tap i's at FIRST + i.
    """
    more = ()
    for i in tl.static_range(TAPS):
        more += (sums[i] + gradient * rows[FIRST + i],)
    return more


@triton.jit
def gradient_before_activation(
    taps, rows, FIRST: tl.constexpr, dy, token, begin, end, channel, in_width, D, TAPS: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    """dpre [rows, BD] in fp32 at these tokens [rows], whose windows begin with row FIRST; 0 outside the sequence.

    taps: TAPS tiles [1, BD]; rows: tiles [rows, BD] of inputs; dy [B·T, D] in memory.
    """
    mask = ((token >= begin) & (token < end))[:, None] & in_width[None]
    # dpre_t = dy_t · act'(pre_t),  silu'(x) = σ(x)·(1 + x·(1 − σ(x)))
    gradient = tl.load(dy + token[:, None] * D + channel[None], mask=mask, other=0.0).to(tl.float32)
    if SILU:
        pre = taps_sum(taps, rows, FIRST, TAPS)
        gate = sigmoid(pre)
        gradient *= gate * (1 + pre * (1 - gate))
    return gradient


@triton.jit
def _state_gradient(
    x, weight, state, dy, dafter, dstate, cu, TIME, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dstate_c = Σ_{r=0…c} w_{c−r} ⊙ dpre_r, r from the sequence's start, plus dafter of inputs still in that state.

    inputs     x, dy [T, D]; weight [D, TAPS]; state [N, D, TAPS−1]; dafter, its like or None
    outputs    dstate [N, D, TAPS−1]
    layout     cu, or None for a batch of sequences of TIME tokens
    sizes      TIME; D channels
    constants  TAPS; SILU; BK ≥ TAPS − 1; BD channels a program
    """
    sequence = tl.program_id(0).to(tl.int64)
    begin, end = sequence_bounds(cu, sequence, TIME)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    in_width = channel < D
    column = tl.arange(0, BK)
    known = (column < TAPS - 1)[:, None] & in_width[None]
    place = (sequence * D + channel[None]) * (TAPS - 1)
    gradient = tl.zeros((BK, BD), tl.float32)
    if dafter is not None:
        moved = column - (end - begin)  # to this column, where the sequence is shorter than the window
        still = (moved >= 0)[:, None] & known
        gradient += tl.load(dafter + place + moved[:, None], mask=still, other=0.0).to(tl.float32)
    taps = load_taps(weight, channel, in_width, TAPS)
    # Σ_r w_{c−r} ⊙ dpre_r, with i = c − r
    for i in tl.static_range(TAPS - 1):
        token = begin + column - i
        rows = ()
        for j in tl.static_range(TAPS):
            at = token + (j - (TAPS - 1))
            rows += (load_inputs(x, state, at, begin, end, sequence, channel, in_width, D, TAPS),)
        own = gradient_before_activation(
            taps, rows, 0, dy, token, begin, end, channel, in_width, D, TAPS, SILU
        )
        gradient += taps[i] * own
    tl.store(dstate + place + column[:, None], gradient.to(dstate.dtype.element_ty), mask=known)


_backward_tuned = Tuned(
    _backward,
    [
        triton.Config({"BD": width, "RUN": run}, num_warps=warps)
        for width, run, warps in ((64, 8, 2), (64, 16, 2), (128, 16, 4), (128, 32, 2))
    ],
    ["D", "TAPS"],
)


def short_conv_backward(
    x: Tensor, weight: Tensor, state: Tensor | None, dy: Tensor, dafter: Tensor | None, table: Tensor | None,
    cu: Tensor | None, *, silu: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Compute dx, the parts [tiles, D, k] of the weight's gradient in fp32, and the given state's gradient.

    dy [B, T, D] and dafter [N, D, k−1] are the gradients of the outputs and of the states after (None: zeros); all
    contiguous. table, cu: the tiles and the bounds of packed sequences; None for a batch.
    """
    (batch, time, width), taps = x.shape, weight.shape[1]
    dx, options = torch.empty_like(x), {"TAPS": taps, "SILU": silu}
    tiles = batch * triton.cdiv(time, CHUNK) if table is None else len(table)
    parts = torch.empty(tiles, width, taps, dtype=torch.float32, device=x.device)
    _backward_tuned[lambda meta: (tiles, triton.cdiv(width, meta["BD"]))](
        x, weight, state, dy, dafter, dx, parts, table, cu, time, width, **options, BT=CHUNK
    )
    dstate = None if state is None else torch.empty_like(state)
    if state is not None and taps > 1:
        _state_gradient[(len(state), triton.cdiv(width, 64))](
            x, weight, state, dy, dafter, dstate, cu, time, width, **options, BK=state_tile(taps), BD=64
        )
    return dx, parts, dstate
