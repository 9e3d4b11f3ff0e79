"""The short convolution as one pass over x forward and one over x and dy backward, and one token by itself.

A program has a tile of CHUNK tokens of one sequence and BD channels, as CHUNK/RUN rows of RUN tokens that follow one
another. It goes through the tokens of its rows in step: an input is loaded once, and stays in registers for the k
windows that it is in.

    forward   saved: inputs alone. y_t = act(Σ_i w_i ⊙ x_{t−(k−1)+i}); other programs copy the last k−1 inputs
    backward  the pre-activation of tokens t … t+k−1 is computed again:
              dpre_t = dy_t · act'(pre_t)    dx_t = Σ_i w_i ⊙ dpre_{t+(k−1)−i} + (state after)'s gradient
              dw_i = Σ_t dpre_t ⊙ x_{t−(k−1)+i} as one partial sum a tile, added in a fixed order

With heads, a program has one head's channels: it normalises the outputs of queries and keys where they lie, and writes
q, k and v each to its own tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import chunk_bounds, chunk_table, sigmoid, sum_rows
from kernels.triton_common.operators import operator
from kernels.triton_common.tuning import Tuned

# Device functions: a tile's bounds, and rows of inputs and of taps.

CHUNK = 64
"""Tokens of a tile."""


def state_tile(taps: int) -> int:
    """Return the rows of a tile of states [D, k−1], a power of two."""
    return triton.next_power_of_2(max(taps - 1, 1))


@triton.jit
def sequence_bounds(cu, sequence, TIME):
    """Return the first token and the end of a sequence, two scalars; without boundaries (cu None) each has TIME tokens.

    cu: bounds of sequences [N+1], or None.
    """
    if cu is None:
        begin = sequence * TIME
        end = begin + TIME
    else:
        begin = tl.load(cu + sequence).to(tl.int64)
        end = tl.load(cu + sequence + 1).to(tl.int64)
    return begin, end


@triton.jit
def tile_bounds(table, cu, row, TIME, SIZE: tl.constexpr):
    """`chunk_bounds` of SIZE tokens, and the same of a batch, which needs no table.

    Returns four scalars: the row's sequence (−1: idle), that one's first token and end, the tile's first token.
    table [rows, 2] and cu [N+1] of a packed batch, or None; TIME: tokens of a sequence where there is no cu.
    """
    if cu is None:
        each = tl.cdiv(TIME, SIZE)
        sequence = (row // each).to(tl.int64)
        begin = sequence * TIME
        end = begin + TIME
        first = begin + (row % each) * SIZE
    else:
        sequence, begin, end, first = chunk_bounds(table, cu, row, SIZE)
    return sequence, begin, end, first


@triton.jit
def load_inputs(x, state, token, begin, end, sequence, channel, in_width, D, STRIDE, TAPS: tl.constexpr):
    """Row [tokens, BD] of inputs at these tokens, which may lie up to TAPS − 1 before the sequence's first."""
    known = (token >= begin) & (token < end)
    row = tl.load(
        x + token[:, None] * STRIDE + channel[None], mask=known[:, None] & in_width[None], other=0.0
    )
    row = row.to(tl.float32)
    if state is not None:
        column = token - begin + TAPS - 1
        place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
        before = (token < begin) & (column >= 0)
        row += tl.load(state + place, mask=before[:, None] & in_width[None], other=0.0).to(tl.float32)
    return row


@triton.jit
def load_taps(weight, channel, in_width, TAPS: tl.constexpr):
    """The TAPS columns of the weight, [1, BD] each; ones without a weight."""
    taps = ()
    for i in tl.static_range(TAPS):
        if weight is None:
            taps += (in_width.to(tl.float32)[None],)
        else:
            taps += (tl.load(weight + channel * TAPS + i, mask=in_width, other=0.0).to(tl.float32)[None],)
    return taps


@triton.jit
def taps_sum(taps, rows, FIRST: tl.constexpr, TAPS: tl.constexpr):
    """Σ_i w_i ⊙ row_{FIRST+i} [rows, BD] in fp32: before the activation; the last of these rows is the token's own.

    taps: TAPS tiles [1, BD]; rows: tiles [rows, BD] of inputs.
    """
    total = taps[0] * rows[FIRST]
    for i in tl.static_range(1, TAPS):
        total += taps[i] * rows[FIRST + i]
    return total


# Heads: the channels are those of QUERIES heads of queries, then KEYS of keys, then those of values, WIDTH each.


@triton.jit
def tile_channels(D, WIDTH: tl.constexpr, BD: tl.constexpr):
    """Return the channels [BD] of the program, and which exist: BD of all, or with heads those of one."""
    column = tl.arange(0, BD)
    if WIDTH is None:
        channel = tl.program_id(1).to(tl.int64) * BD + column
        in_width = channel < D
    else:
        channel = tl.program_id(1).to(tl.int64) * WIDTH + column
        in_width = column < WIDTH
    return channel, in_width


@triton.jit
def load_outputs(y, k, v, token, channel, mask, D, QUERIES, KEYS, WIDTH: tl.constexpr):
    """Numbers [rows, BD] in fp32 at these tokens of y [T, D], or with heads of the program's in y (queries), k, v."""
    if WIDTH is None:
        out = tl.load(y + token[:, None] * D + channel[None], mask=mask, other=0.0).to(tl.float32)
    else:
        head, first, second = tl.program_id(1), QUERIES * WIDTH, (QUERIES + KEYS) * WIDTH
        if head < QUERIES:
            out = tl.load(y + token[:, None] * first + channel[None], mask=mask, other=0.0).to(tl.float32)
        elif head < QUERIES + KEYS:
            place = token[:, None] * (second - first) + (channel - first)[None]
            out = tl.load(k + place, mask=mask, other=0.0).to(tl.float32)
        else:
            place = token[:, None] * (D - second) + (channel - second)[None]
            out = tl.load(v + place, mask=mask, other=0.0).to(tl.float32)
    return out


@triton.jit
def store_outputs(y, k, v, out, token, channel, mask, D, QUERIES, KEYS, WIDTH: tl.constexpr):
    """Write out [rows, BD] where `load_outputs` reads."""
    if WIDTH is None:
        tl.store(y + token[:, None] * D + channel[None], out.to(y.dtype.element_ty), mask=mask)
    else:
        head, first, second = tl.program_id(1), QUERIES * WIDTH, (QUERIES + KEYS) * WIDTH
        if head < QUERIES:
            tl.store(y + token[:, None] * first + channel[None], out.to(y.dtype.element_ty), mask=mask)
        elif head < QUERIES + KEYS:
            place = token[:, None] * (second - first) + (channel - first)[None]
            tl.store(k + place, out.to(k.dtype.element_ty), mask=mask)
        else:
            place = token[:, None] * (D - second) + (channel - second)[None]
            tl.store(v + place, out.to(v.dtype.element_ty), mask=mask)


# The forward pass.


@triton.jit
def _forward(
    x, weight, state, y, k, v, after, table, cu, TILES, TIME, D, STRIDE, QUERIES, KEYS,
    TAPS: tl.constexpr, SILU: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """A tile of y, or one of the states after, which have the rows of the grid behind those of y.

    inputs     x [T, D], rows STRIDE apart; weight [D, TAPS], or None: 1; state [N, D, TAPS−1] or None
    outputs    y [T, D]; after [N, D, TAPS−1] or None; with heads y [T, QUERIES·WIDTH] and k, v likewise
    layout     table, cu; or None for a batch of sequences of TIME tokens
    sizes      TILES of y along the tokens; TIME; D channels; heads of QUERIES and KEYS
    constants  TAPS; SILU; WIDTH of a head, or None; EPS of a norm; BT tokens of a tile, in rows of RUN; BK ≥ TAPS − 1;
               BD channels, with heads BD ≥ WIDTH
    """
    row = tl.program_id(0)
    channel, in_width = tile_channels(D, WIDTH, BD)
    if row < TILES:
        _outputs(
            x, weight, state, y, k, v, table, cu, row, TIME, channel, in_width, D, STRIDE, QUERIES, KEYS,
            TAPS, SILU, WIDTH, EPS, BT, RUN,
        )  # fmt: skip
    elif after is not None:
        _last_inputs(x, state, after, cu, (row - TILES).to(tl.int64), TIME, channel, D, STRIDE, TAPS, BK)


@triton.jit
def _outputs(
    x, weight, state, y, k, v, table, cu, row, TIME, channel, in_width, D, STRIDE, QUERIES, KEYS,
    TAPS: tl.constexpr, SILU: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr,
    BT: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """y of a tile."""
    sequence, begin, end, first = tile_bounds(table, cu, row, TIME, BT)
    if sequence >= 0:
        token = first + tl.arange(0, BT // RUN) * RUN
        taps = load_taps(weight, channel, in_width, TAPS)
        rows = ()
        for i in tl.static_range(TAPS - 1):
            before = token + (i - (TAPS - 1))
            rows += (load_inputs(x, state, before, begin, end, sequence, channel, in_width, D, STRIDE, TAPS),)
        for i in tl.static_range(RUN):
            now = token + i  # none before the sequence's first: no state
            rows += (load_inputs(x, None, now, begin, end, sequence, channel, in_width, D, STRIDE, TAPS),)
            # y_t = act( Σ_i w_i ⊙ x_{t−(k−1)+i} )
            out = taps_sum(taps, rows, i, TAPS)
            if SILU:
                out = out * sigmoid(out)
            if WIDTH is not None:  # noqa: SIM102 - known when it is compiled, and the next is not
                if tl.program_id(1) < QUERIES + KEYS:
                    out *= tl.rsqrt(tl.sum(out * out, axis=1, keep_dims=True) + EPS)
            mask = (now < end)[:, None] & in_width[None]
            store_outputs(y, k, v, out, now, channel, mask, D, QUERIES, KEYS, WIDTH)


@triton.jit
def _last_inputs(
    x, state, after, cu, sequence, TIME, channel, D, STRIDE, TAPS: tl.constexpr, BK: tl.constexpr
):
    """after [N, D, TAPS−1]: the last inputs of a sequence, oldest first, from the state where it is too short."""
    begin, end = sequence_bounds(cu, sequence, TIME)
    column = tl.arange(0, BK)
    # x_{T−(k−1)+c} for column c
    token = end - (TAPS - 1) + column
    row = load_inputs(x, state, token, begin, end, sequence, channel, channel < D, D, STRIDE, TAPS)
    place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
    mask = (column < TAPS - 1)[:, None] & (channel < D)[None]
    tl.store(after + place, row.to(after.dtype.element_ty), mask=mask)


_forward_tuned = Tuned(
    _forward,
    [
        triton.Config({"BD": width, "RUN": run}, num_warps=warps)
        for width, run, warps in ((64, 8, 2), (64, 16, 2), (128, 32, 2), (256, 32, 2))
    ],
    ["D", "TAPS"],
)
_forward_of_heads = Tuned(
    _forward,
    [triton.Config({"RUN": run}, num_warps=warps) for run, warps in ((16, 4), (8, 4), (16, 2), (32, 4))],
    ["D", "TAPS", "WIDTH"],
)


# The gradients.


@triton.jit
def _backward(
    x, weight, state, dy, dk, dv, dafter, dx, dweight, table, cu, TIME, D, STRIDE, QUERIES, KEYS,
    TAPS: tl.constexpr, SILU: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """dx, and the part of every tile in the weight's gradient.

    inputs     x [T, D], rows STRIDE apart; dy [T, D]; weight [D, TAPS]; state and dafter [N, D, TAPS−1], or None; with
               heads dy, dk and dv as `_forward` has y, k and v
    outputs    dx [T, D]; dweight [tiles along the tokens, D, TAPS]
    layout     table, cu; or None for a batch of sequences of TIME tokens
    sizes      TIME; D channels; heads of QUERIES and KEYS
    constants  TAPS; SILU; WIDTH, EPS, BD as there; BT tokens of a tile, in rows of RUN
    """
    tile = tl.program_id(0)
    sequence, begin, end, first = tile_bounds(table, cu, tile, TIME, BT)
    channel, in_width = tile_channels(D, WIDTH, BD)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums += (tl.zeros((BT // RUN, BD), tl.float32),)
    if sequence >= 0:
        token = first + tl.arange(0, BT // RUN) * RUN
        taps = load_taps(weight, channel, in_width, TAPS)
        rows = ()
        for i in tl.static_range(TAPS - 1):
            before = token + (i - (TAPS - 1))
            rows += (load_inputs(x, state, before, begin, end, sequence, channel, in_width, D, STRIDE, TAPS),)
        gradients = ()
        for i in tl.static_range(RUN + TAPS - 1):
            now = token + i  # none before the sequence's first: no state
            rows += (load_inputs(x, None, now, begin, end, sequence, channel, in_width, D, STRIDE, TAPS),)
            gradients += (
                gradient_before_activation(
                    taps, rows, i, dy, dk, dv, now, begin, end, channel, in_width, D, QUERIES, KEYS,
                    TAPS, SILU, WIDTH, EPS,
                ),
            )  # fmt: skip
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
    if weight is not None:
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
    taps, rows, FIRST: tl.constexpr, dy, dk, dv, token, begin, end, channel, in_width, D, QUERIES, KEYS,
    TAPS: tl.constexpr, SILU: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """dpre [rows, BD] in fp32 at these tokens [rows], whose windows begin with row FIRST; 0 outside the sequence.

    taps: TAPS tiles [1, BD]; rows: tiles [rows, BD] of inputs; dy [B·T, D], or with heads dy, dk and dv, in memory.
    """
    mask = ((token >= begin) & (token < end))[:, None] & in_width[None]
    gradient = load_outputs(dy, dk, dv, token, channel, mask, D, QUERIES, KEYS, WIDTH)
    if SILU:
        pre = taps_sum(taps, rows, FIRST, TAPS)
        gate = sigmoid(pre)
        if WIDTH is not None:  # noqa: SIM102
            if tl.program_id(1) < QUERIES + KEYS:
                # y = r·s, r = (Σ s² + ε)^(−½):  ds = r·(dy − r²·(Σ dy ⊙ s)·s)
                s = pre * gate
                r = tl.rsqrt(tl.sum(s * s, axis=1, keep_dims=True) + EPS)
                gradient = r * (gradient - r * r * tl.sum(gradient * s, axis=1, keep_dims=True) * s)
        # dpre_t = ds_t · act'(pre_t),  silu'(x) = σ(x)·(1 + x·(1 − σ(x)))
        gradient *= gate * (1 + pre * (1 - gate))
    return gradient


@triton.jit
def _state_gradient(
    x, weight, state, dy, dk, dv, dafter, dstate, cu, TIME, D, STRIDE, QUERIES, KEYS,
    TAPS: tl.constexpr, SILU: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr,
    BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dstate_c = Σ_{r=0…c} w_{c−r} ⊙ dpre_r, r from the sequence's start, plus dafter of inputs still in that state.

    inputs     as of `_backward`; state [N, D, TAPS−1]
    outputs    dstate [N, D, TAPS−1]
    layout     cu, or None for a batch of sequences of TIME tokens
    sizes      as of `_backward`
    constants  as of `_backward`; BK ≥ TAPS − 1
    """
    sequence = tl.program_id(0).to(tl.int64)
    begin, end = sequence_bounds(cu, sequence, TIME)
    channel, in_width = tile_channels(D, WIDTH, BD)
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
            rows += (load_inputs(x, state, at, begin, end, sequence, channel, in_width, D, STRIDE, TAPS),)
        d_pre = gradient_before_activation(
            taps, rows, 0, dy, dk, dv, token, begin, end, channel, in_width, D, QUERIES, KEYS,
            TAPS, SILU, WIDTH, EPS,
        )  # fmt: skip
        gradient += taps[i] * d_pre
    tl.store(dstate + place + column[:, None], gradient.to(dstate.dtype.element_ty), mask=known)


_backward_tuned = Tuned(
    _backward,
    [
        triton.Config({"BD": width, "RUN": run}, num_warps=warps)
        for width, run, warps in ((64, 8, 2), (64, 16, 2), (128, 16, 4), (128, 32, 2))
    ],
    ["D", "TAPS"],
)
_backward_of_heads = Tuned(
    _backward,
    [triton.Config({"RUN": run}, num_warps=warps) for run, warps in ((16, 4), (16, 8), (32, 4), (32, 8))],
    ["D", "TAPS", "WIDTH"],
)
NORM_EPS = 1e-6
"""Of the L2 norm of a head."""


def short_conv_backward(
    x: Tensor, weight: Tensor | None, state: Tensor | None, dy: Sequence[Tensor], dafter: Tensor | None,
    table: Tensor | None, cu: Tensor | None, *, silu: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Compute dx, the weight's gradient and the given state's gradient; None of those that are not given.

    dy: the gradient [B, T, D] of the output, or those [B, T, H, K] of q, k and v, and dafter [N, D, k−1] that of the
    states after (None: zeros); all contiguous. table, cu: tiles and bounds of packed sequences; None for a batch.
    """
    (batch, time, width), rows = x.shape, _rows(x)
    taps = 1 if weight is None else weight.shape[1]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tiles = batch * triton.cdiv(time, CHUNK) if table is None else len(table)
    parts = None if weight is None else x.new_empty(tiles, width, taps, dtype=torch.float32)
    given = (rows, weight, state, *(dy if len(dy) > 1 else (*dy, None, None)), dafter)
    sizes, options = _sizes(x, dy), {"TAPS": taps, "SILU": silu}
    backward, tile = _tuned(_backward_tuned, _backward_of_heads, sizes)
    backward[lambda meta: (tiles, programs(sizes, width, meta))](
        *given, dx, parts, table, cu, time, width, rows.stride(0), **sizes, **options, **tile, BT=CHUNK
    )
    dstate = None if state is None else torch.empty_like(state)
    if state is not None and taps > 1:
        tile = tile or {"BD": 64}
        _state_gradient[(len(state), programs(sizes, width, tile))](
            *given, dstate, cu, time, width, rows.stride(0), **sizes, **options, BK=state_tile(taps), **tile
        )
    return dx, None if weight is None else sum_rows(parts, weight.dtype), dstate


def _sizes(x: Tensor, outputs: Sequence[Tensor]) -> dict[str, Any]:
    """The heads of the outputs [B, T, H, K] q, k and v, or none of an output alone [B, T, D]."""
    if len(outputs) == 1:
        return {"QUERIES": 0, "KEYS": 0, "WIDTH": None, "EPS": NORM_EPS}
    q, k, _ = outputs
    return {"QUERIES": q.shape[2], "KEYS": k.shape[2], "WIDTH": q.shape[3], "EPS": NORM_EPS}


def _tuned(plain: Tuned, heads: Tuned, sizes: dict[str, Any]) -> tuple[Tuned, dict[str, int]]:
    """The kernel that has these sizes, and the channels of its tile where they give them."""
    width = sizes["WIDTH"]
    return (plain, {}) if width is None else (heads, {"BD": triton.next_power_of_2(width)})


def programs(sizes: dict[str, Any], width: int, meta: dict[str, int]) -> int:
    """Return the programs along the channels: one a head, or one for BD channels."""
    return triton.cdiv(width, sizes["WIDTH"] or meta["BD"])


# One token for every sequence without gradients, as in decoding.
#
# A program has the windows of BD channels of one sequence, k inputs each: k−1 from the state and the token. It reads
# the state once, and writes it once, moved by one.


@triton.jit
def _step(
    x, weight, state, y, after, STRIDE, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One token of BD channels of one sequence.

    inputs     x [N, D], rows STRIDE apart; weight [D, TAPS]; state [N, D, TAPS−1] or None
    outputs    y [N, D]; after [N, D, TAPS−1]
    constants  TAPS; SILU; BK ≥ TAPS; BD channels a program
    """
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    in_width = channel < D
    column = tl.arange(0, BK)[None]
    # window = (state, x_t)
    token = tl.load(x + row * STRIDE + channel, mask=in_width, other=0.0)
    window = tl.where(column == TAPS - 1, token[:, None], tl.zeros((BD, BK), token.dtype))
    place = (row * D + channel)[:, None] * (TAPS - 1) + column
    if state is not None:
        before = in_width[:, None] & (column < TAPS - 1)
        window += tl.load(state + place, mask=before, other=0.0).to(token.dtype)
    known = in_width[:, None] & (column < TAPS)
    taps = tl.load(weight + channel[:, None] * TAPS + column, mask=known, other=0.0)
    # y_t = act( Σ_i w_i ⊙ window_i )
    out = tl.sum(window.to(tl.float32) * taps.to(tl.float32), axis=1)
    if SILU:
        out = out * sigmoid(out)
    tl.store(y + row * D + channel, out.to(y.dtype.element_ty), mask=in_width)
    # state after: the window without its oldest input
    tl.store(after + place - 1, window, mask=known & (column > 0))


_step_tuned = Tuned(
    _step,
    [
        triton.Config({"BD": width}, num_warps=warps)
        for width, warps in ((64, 2), (128, 4), (32, 1), (256, 4))
    ],
    ["D", "TAPS"],
)


@operator
def short_conv_one_token(
    x: Tensor, weight: Tensor, state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.short_conv` of T = 1, without gradients: one launch.

    x [B, 1, D], weight [D, k], state [B, D, k−1] or None -> y [B, 1, D] and the state [B, D, k−1] in x's dtype.
    """
    x = x if x.stride(2) == 1 else x.contiguous()  # a part of a wider projection is read where it lies
    weight = weight.contiguous()
    state = None if state is None else state.contiguous()
    (batch, _, width), taps = x.shape, weight.shape[1]
    y = torch.empty(batch, 1, width, dtype=x.dtype, device=x.device)
    after = torch.empty(batch, width, taps - 1, dtype=x.dtype, device=x.device)
    _step_tuned[lambda meta: (batch, triton.cdiv(width, meta["BD"]))](
        x, weight, state, y, after, x.stride(0), width, TAPS=taps, SILU=silu, BK=triton.next_power_of_2(taps)
    )
    return y, after


# The backends.


def _rows(x: Tensor) -> Tensor:
    """x [B, T, D] as rows [B·T, D] whose numbers are neighbours; a copy where no view has that."""
    rows = x.flatten(0, 1)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _convolve(
    ctx, x: Tensor, weight: Tensor | None, state: Tensor | None, cu: Tensor | None, silu: bool,
    outputs: Sequence[Tensor], *, keeps: bool,
) -> Tensor | None:  # fmt: skip
    """Write y, or q, k and v; returns the states after where they are kept, and saves what backward takes."""
    (batch, time, width), rows = x.shape, _rows(x)
    weight, state = (None if y is None else y.contiguous() for y in (weight, state))
    taps = 1 if weight is None else weight.shape[1]
    # A batch needs neither boundaries nor a table: two operators fewer, which take longer than a small convolution.
    table = None if cu is None else chunk_table(x, cu, CHUNK)
    tiles = batch * triton.cdiv(time, CHUNK) if table is None else len(table)
    sequences = batch if cu is None else len(cu) - 1
    after = x.new_empty(sequences, width, taps - 1) if keeps else None
    grid_rows = tiles + (sequences if taps > 1 and keeps else 0)
    sizes = _sizes(x, outputs)
    forward, tile = _tuned(_forward_tuned, _forward_of_heads, sizes)
    forward[lambda meta: (grid_rows, programs(sizes, width, meta))](
        rows, weight, state, *(outputs if len(outputs) > 1 else (*outputs, None, None)), after, table, cu, tiles, time,
        width, rows.stride(0), **sizes, TAPS=taps, SILU=silu, BT=CHUNK, BK=state_tile(taps), **tile,
    )  # fmt: skip
    ctx.save_for_backward(x, weight, state, cu, table)
    ctx.silu = silu
    ctx.set_materialize_grads(False)
    return after


@operator
class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, state, cu_seqlens, silu):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return y, _convolve(ctx, x, weight, state, cu_seqlens, silu, (y,), keeps=True)

    @staticmethod
    @first_order
    def backward(ctx, dy, dafter):
        x, weight, state, cu, table = ctx.saved_tensors
        dy = x.new_zeros(x.shape) if dy is None else dy.contiguous()
        dafter = None if dafter is None else dafter.contiguous()
        gradients = short_conv_backward(x, weight, state, (dy,), dafter, table, cu, silu=ctx.silu)
        return *gradients, None, None


@operator
class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, state, cu_seqlens, queries, keys, values):
        heads, width = (queries, keys, values), x.shape[2] // (queries + keys + values)
        outputs = [torch.empty(*x.shape[:2], n, width, dtype=x.dtype, device=x.device) for n in heads]
        _convolve(ctx, x, weight, state, cu_seqlens, True, outputs, keeps=False)
        ctx.shapes = [list(y.shape) for y in outputs]
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx, *dy):
        x, weight, state, cu, table = ctx.saved_tensors
        dy = [
            x.new_zeros(shape) if d is None else d.contiguous()
            for d, shape in zip(dy, ctx.shapes, strict=True)
        ]
        gradients = short_conv_backward(x, weight, state, dy, None, table, cu, silu=ctx.silu)
        return *gradients, None, None, None, None


def short_conv_heads_triton(
    x: Tensor,
    weight: Tensor | None,
    *,
    heads: tuple[int, int, int],
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `kernels.short_conv_heads` on a GPU in one pass each way.

    x [B, T, D], weight [D, k] or None, state [N, D, k−1] or None -> q, k, v [B, T, H, K] in x's dtype, contiguous.
    """
    return _Heads(x, weight, state, cu_seqlens, *heads, returns=(True, True, True))


def short_conv_triton(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.short_conv` on a GPU: memory-bound, each input read once forward and once backward.

    A single token without gradients has a kernel of its own.

    x [B, T, D], weight [D, k], state [N, D, k−1] or None -> y [B, T, D] and states [N, D, k−1] in x's dtype.
    """
    moves = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, state)
    )
    if x.shape[1] == 1 and cu_seqlens is None and not moves:
        return short_conv_one_token(x, weight, state, activation == "silu", returns=(True, True))
    return _ShortConv(x, weight, state, cu_seqlens, activation == "silu", returns=(True, True))
