"""Device functions of the short convolution's kernels: a tile's bounds, and rows of inputs and of taps.

A tile has CHUNK tokens of one sequence and BD channels, as CHUNK/RUN rows of RUN tokens that follow one another. A
program goes through the tokens of its rows in step: all of a window but its newest input is in registers already.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.device import chunk_bounds

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
def load_inputs(x, state, token, begin, end, sequence, channel, in_width, D, TAPS: tl.constexpr):
    """Row [tokens, BD] of inputs at these tokens, which may lie up to TAPS − 1 before the sequence's first."""
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
def load_taps(weight, channel, in_width, TAPS: tl.constexpr):
    """The TAPS columns of the weight, [1, BD] each."""
    taps = ()
    for i in tl.static_range(TAPS):
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
