"""Short convolution as one pass over x forward and one over x and dy backward.

A program has a tile of BT tokens of one sequence and BD channels, in rows of RUN tokens that follow one another. It
goes through the tokens of its rows in step: an input is loaded once, and stays for the k windows that it is in.

    forward   saved: inputs alone. y_t = act(Σ_i w_i ⊙ x_{t−(k−1)+i}); other programs copy the last k−1 inputs
    backward  (triton_backward.py) the pre-activation of tokens t … t+k−1 is computed again:
              dpre_t = dy_t · act'(pre_t)    dx_t = Σ_i w_i ⊙ dpre_{t+(k−1)−i} + (state after)'s gradient
              dw_i = Σ_t dpre_t ⊙ x_{t−(k−1)+i} as one partial sum a tile, added in a fixed order

One token without gradients, as in decoding, has a kernel of its own (triton_step.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.short_conv.triton_backward import short_conv_backward
from kernels.ops.short_conv.triton_step import short_conv_one_token
from kernels.ops.short_conv.triton_tiles import (
    CHUNK,
    load_inputs,
    load_taps,
    sequence_bounds,
    state_tile,
    taps_sum,
    tile_bounds,
)
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import sigmoid, sum_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _forward(
    x, weight, state, y, after, table, cu, TILES, TIME, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    BD: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """A tile of y, or one of the states after, which have the rows of the grid behind those of y.

    inputs     x [T, D]; weight [D, TAPS]; state [N, D, TAPS−1] or None
    outputs    y [T, D]; after [N, D, TAPS−1]
    layout     table, cu; or None for a batch of sequences of TIME tokens
    sizes      TILES of y along the tokens; TIME; D channels
    constants  TAPS; SILU; BT tokens of a tile, in rows of RUN; BK ≥ TAPS − 1; BD channels
    """
    row = tl.program_id(0)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    if row < TILES:
        _outputs(x, weight, state, y, table, cu, row, TIME, channel, D, TAPS, SILU, BT, RUN)
    else:
        _last_inputs(x, state, after, cu, (row - TILES).to(tl.int64), TIME, channel, D, TAPS, BK)


@triton.jit
def _outputs(
    x, weight, state, y, table, cu, row, TIME, channel, D,
    TAPS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """y of a tile."""
    sequence, begin, end, first = tile_bounds(table, cu, row, TIME, BT)
    if sequence >= 0:
        in_width = channel < D
        token = first + tl.arange(0, BT // RUN) * RUN
        taps = load_taps(weight, channel, in_width, TAPS)
        rows = ()
        for i in tl.static_range(TAPS - 1):
            before = token + (i - (TAPS - 1))
            rows += (load_inputs(x, state, before, begin, end, sequence, channel, in_width, D, TAPS),)
        for i in tl.static_range(RUN):
            now = token + i  # none before the sequence's first: no state
            rows += (load_inputs(x, None, now, begin, end, sequence, channel, in_width, D, TAPS),)
            # y_t = act( Σ_i w_i ⊙ x_{t−(k−1)+i} )
            out = taps_sum(taps, rows, i, TAPS)
            if SILU:
                out = out * sigmoid(out)
            mask = (now < end)[:, None] & in_width[None]
            tl.store(y + now[:, None] * D + channel[None], out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _last_inputs(x, state, after, cu, sequence, TIME, channel, D, TAPS: tl.constexpr, BK: tl.constexpr):
    """after [N, D, TAPS−1]: the last inputs of a sequence, oldest first, from the state where it is too short."""
    begin, end = sequence_bounds(cu, sequence, TIME)
    column = tl.arange(0, BK)
    # x_{T−(k−1)+c} for column c
    token = end - (TAPS - 1) + column
    row = load_inputs(x, state, token, begin, end, sequence, channel, channel < D, D, TAPS)
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


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, state, cu_seqlens, silu):
        x, weight = x.contiguous(), weight.contiguous()
        state = None if state is None else state.contiguous()
        (batch, time, width), taps = x.shape, weight.shape[1]
        # A batch needs neither boundaries nor a table: two operators fewer, which take longer than a small convolution.
        table = None if cu_seqlens is None else chunk_table(x, cu_seqlens, CHUNK)
        tiles = batch * triton.cdiv(time, CHUNK) if table is None else len(table)
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        y = torch.empty_like(x)
        after = x.new_empty(sequences, width, taps - 1)
        rows = tiles + (sequences if taps > 1 else 0)
        _forward_tuned[lambda meta: (rows, triton.cdiv(width, meta["BD"]))](
            x, weight, state, y, after, table, cu_seqlens, tiles, time, width,
            TAPS=taps, SILU=silu, BT=CHUNK, BK=state_tile(taps),
        )  # fmt: skip
        ctx.save_for_backward(x, weight, state, cu_seqlens, table)
        ctx.silu = silu
        ctx.set_materialize_grads(False)
        return y, after

    @staticmethod
    @first_order
    def backward(ctx, dy, dafter):
        x, weight, state, cu, table = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else dy.contiguous()
        dafter = None if dafter is None else dafter.contiguous()
        dx, parts, dstate = short_conv_backward(x, weight, state, dy, dafter, table, cu, silu=ctx.silu)
        return dx, sum_rows(parts, weight.dtype), dstate, None, None


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
        return short_conv_one_token(x, weight, state, activation == "silu")
    return _ShortConv.apply(x, weight, state, cu_seqlens, activation == "silu")
