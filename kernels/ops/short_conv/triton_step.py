"""One token of the short convolution for every sequence, as in decoding.

A program has the windows of BD channels of one sequence, k inputs each: k−1 from the state and the token. It reads the
state once, and writes it once, moved by one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common.device import sigmoid
from kernels.triton_common.tuning import Tuned


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
