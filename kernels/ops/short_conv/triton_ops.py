"""Short convolution as one pass over x forward and one over x and dy backward.

A program has a tile of BT tokens of one sequence and BD channels. Row t of tap i is x_{t−(k−1)+i}; the k rows of
neighbouring taps overlap, so that all but one come from the cache.

    forward   saved: inputs alone. y = act(Σ_i w_i ⊙ row_i); a small kernel copies the last k−1 inputs
    backward  (triton_backward.py) the pre-activation of rows t … t+k−1 is computed again:
              dpre_t = dy_t · act'(pre_t)    dx_t = Σ_i w_i ⊙ dpre_{t+(k−1)−i} + (state after)'s gradient
              dw_i = Σ_t dpre_t ⊙ row_i as one partial sum a tile, added in a fixed order

One token without gradients, as in decoding, has a kernel of its own (triton_step.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.short_conv.triton_backward import short_conv_backward
from kernels.ops.short_conv.triton_step import short_conv_one_token
from kernels.ops.short_conv.triton_tiles import (
    CHANNEL_TILES,
    CHUNK,
    load_inputs,
    state_grid,
    state_tile,
    taps_sum,
)
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds, sigmoid, sum_rows
from kernels.triton_common.gradients import first_order
from kernels.triton_common.tuning import Tuned


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
        out = taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS)
        if SILU:
            out = out * sigmoid(out)
        mask = (token < end)[:, None] & in_width[None]
        tl.store(y + token[:, None] * D + channel[None], out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _last_inputs(x, state, after, cu, D, TAPS: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    """after [N, D, TAPS−1]: the last inputs of a sequence, oldest first, from the state where it is too short."""
    sequence = tl.program_id(0).to(tl.int64)
    begin = tl.load(cu + sequence).to(tl.int64)
    end = tl.load(cu + sequence + 1).to(tl.int64)
    channel = tl.program_id(1).to(tl.int64) * BD + tl.arange(0, BD)
    column = tl.arange(0, BK)
    # x_{T−(k−1)+c} for column c
    token = end - (TAPS - 1) + column
    row = load_inputs(x, state, token, begin, end, sequence, channel, channel < D, D, TAPS)
    place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
    mask = (column < TAPS - 1)[:, None] & (channel < D)[None]
    tl.store(after + place, row.to(after.dtype.element_ty), mask=mask)


_forward_tuned = Tuned(_forward, CHANNEL_TILES, ["D", "TAPS"])


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
            _last_inputs[state_grid(cu, width)](x, state, after, cu, width, TAPS=taps, **state_tile(taps))
        ctx.save_for_backward(x, weight, state, cu, table)
        ctx.silu = silu
        return y, after

    @staticmethod
    @first_order
    def backward(ctx, dy, dafter):
        x, weight, state, cu, table = ctx.saved_tensors
        dx, parts, dstate = short_conv_backward(
            x, weight, state, dy.contiguous(), dafter.contiguous(), table, cu, silu=ctx.silu
        )
        return dx, sum_rows(parts, weight.dtype), dstate, None, None


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
