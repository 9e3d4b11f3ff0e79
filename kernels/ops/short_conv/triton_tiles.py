"""Device functions of the short convolution's kernels: inputs, sums over taps, and gradients, of a tile of tokens.

Row t of tap i is x_{t−(k−1)+i}, read from x or, before the sequence's first token, from the state that came in.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common.device import sigmoid

CHUNK = 32
"""Tokens of a tile."""

CHANNEL_TILES = [
    triton.Config({"BD": width}, num_warps=warps) for width, warps in ((64, 4), (128, 4), (32, 2), (256, 8))
]
"""Launch configurations: channels a tile."""


def state_tile(taps: int) -> dict[str, int]:
    """Return the sides of a tile of states [D, k−1], as kernels take them."""
    return {"BK": triton.next_power_of_2(max(taps - 1, 1)), "BD": 64}


def state_grid(cu: Tensor, width: int) -> tuple[int, int]:
    """Return the grid over all sequences and their states' tiles."""
    return len(cu) - 1, triton.cdiv(width, 64)


@triton.jit
def load_inputs(x, state, token, begin, end, sequence, channel, in_width, D, TAPS: tl.constexpr):
    """Row [BT, BD] of inputs at these tokens, which may lie up to TAPS − 1 before the sequence's first."""
    known = (token >= begin) & (token < end)
    row = tl.load(x + token[:, None] * D + channel[None], mask=known[:, None] & in_width[None], other=0.0)
    row = row.to(tl.float32)
    if state is not None:
        column = token - begin + TAPS - 1
        place = (sequence * D + channel[None]) * (TAPS - 1) + column[:, None]
        before = (token < begin) & (column >= 0)
        row += tl.load(state + place, mask=before[:, None] & in_width[None], other=0.0).to(tl.float32)
    return row


@triton.jit
def taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS: tl.constexpr):
    """Σ_i w_i ⊙ row_i at these tokens, before the activation."""
    total = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    # Σ_i w_i ⊙ x_{t−(k−1)+i}
    for i in tl.static_range(TAPS):
        tap = tl.load(weight + channel * TAPS + i, mask=in_width, other=0.0).to(tl.float32)
        row = load_inputs(x, state, token - (TAPS - 1) + i, begin, end, sequence, channel, in_width, D, TAPS)
        total += row * tap[None]
    return total


@triton.jit
def gradient_before_activation(
    x, weight, state, dy, token, begin, end, sequence, channel, in_width, D,
    TAPS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """dpre at these tokens; 0 outside the sequence."""
    mask = ((token >= begin) & (token < end))[:, None] & in_width[None]
    # dpre_t = dy_t · act'(pre_t),  silu'(x) = σ(x)·(1 + x·(1 − σ(x)))
    gradient = tl.load(dy + token[:, None] * D + channel[None], mask=mask, other=0.0).to(tl.float32)
    if SILU:
        pre = taps_sum(x, weight, state, token, begin, end, sequence, channel, in_width, D, TAPS)
        gate = sigmoid(pre)
        gradient *= gate * (1 + pre * (1 - gate))
    return gradient
