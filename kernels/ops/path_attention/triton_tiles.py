"""Tiles that the kernels of PaTH attention share.

The tensors that kernels pass to each other are in blocks: [M, heads, C, KP] for M rows of the chunk table, C tokens a
block and a width padded to a power of two, zeros after the sequence's end and beyond the width. So only inputs, which
are on the token axis, are read with masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import triton
import triton.language as tl

from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_rows
from kernels.triton_common.tuning import Tuned

Launch = tuple[int, int, int, int]

LOG2E: tl.constexpr = tl.constexpr(math.log2(math.e))
LN2: tl.constexpr = tl.constexpr(math.log(2))


@triton.jit
def tokens_fp32(x, token, end, head, HEADS, column, WIDTH):
    """x [tokens, HEADS, WIDTH] of a head at these tokens, a tile [token, column] in fp32; 0 from token `end` on."""
    return load_head_rows(x, token, end, head, HEADS, column, WIDTH).to(tl.float32)


@triton.jit
def load_block(x, row, column, WIDTH):
    """These rows and columns of a buffer x [·, WIDTH], as stored, without masks."""
    return tl.load(x + row[:, None] * WIDTH + column[None])


@triton.jit
def store_block(x, values, row, column, WIDTH):
    """Write values [rows, columns], in x's dtype, to a buffer x [·, WIDTH], without masks."""
    tl.store(x + row[:, None] * WIDTH + column[None], values.to(x.dtype.element_ty))


@triton.jit
def minus_turned(x, turn, K: tl.constexpr, FLIP: tl.constexpr):
    """x − x·D for x [rows, K] and D [K, K] in main memory, or x − x·Dᵀ; a wide D is loaded in halves, to fit."""
    out = tl.arange(0, K)
    if K <= 128:
        x -= tl.dot(x.to(turn.dtype.element_ty), _slice(turn, out, out, K, FLIP), input_precision="ieee")
    else:
        half = tl.arange(0, K // 2)
        left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, K // 2)), (0, 2, 1)))
        x -= tl.dot(left.to(turn.dtype.element_ty), _slice(turn, half, out, K, FLIP), input_precision="ieee")
        half += K // 2
        x -= tl.dot(right.to(turn.dtype.element_ty), _slice(turn, half, out, K, FLIP), input_precision="ieee")
    return x


@triton.jit
def _slice(turn, into, out, K: tl.constexpr, FLIP: tl.constexpr):
    """These rows and columns of D, or of Dᵀ."""
    if FLIP:
        part = tl.trans(tl.load(turn + out[:, None] * K + into[None]))
    else:
        part = tl.load(turn + into[:, None] * K + out[None])
    return part


@triton.jit
def unit_inverse(lower, C: tl.constexpr, PRECISION: tl.constexpr):
    """Invert: (I + L)⁻¹ of a strictly lower triangular L [C, C], C = 64 or 128.

    The inverses Y of diagonal blocks of size b give those of size 2b, Y − Y·L'·Y with L' what of L stands below them
    inside; every intermediate is part of an inverse of part of the matrix, so that nothing grows and cancels.
    The loop stays one at run time: unrolled, its products take the compiler minutes.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    # Y = I − L' for blocks of size 1
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row >> 1 == column >> 1, lower, 0.0)
    # Y ← Y − Y·L'·Y for blocks of size b = 2^level
    for level in range(1, 7 if C == 128 else 6):
        below = (row >> level + 1 == column >> level + 1) & (row >> level > column >> level)
        step = tl.dot(tl.where(below, lower, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, step, input_precision=PRECISION)
    return inverse


@triton.jit
def unit_of(table, cu, row, span, C: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr):
    """Find the unit of C tokens that a row of a table [rows, 2] names; seven scalars.

    returns  sequence (−1: an idle row), begin and end, its first token and its end; own, the unit's place in buffers;
             number, the unit's in its sequence; start, that of the first unit of its span; stop, that of the first unit
             which its keys do not reach

    Units are blocks (NEAR), which reach to the end of their stretch, or stretches, which reach to the end of the
    sequence and of which only those of span `span` count.
    """
    sequence, begin, end, first = chunk_bounds(table, cu, row, C)
    number = tl.load(table + row * 2 + 1).to(tl.int64)
    stop = tl.cdiv(end - begin, C)
    if NEAR:
        own = row.to(tl.int64)
        start = number // UNITS * UNITS
        stop = tl.minimum(stop, start + UNITS)
    else:
        # Full stretches do not share it, nor do those with an earlier one: two begin at least C tokens apart.
        own = first // C
        start = span * UNITS + 0 * number
    return sequence, begin, end, own, number, start, stop


@triton.jit
def token_scalars(x, first, row, left):
    """x [T] at these rows after token `first`, 0 from row `left` on."""
    return tl.load(x + first + row, mask=row < left, other=0.0)


def at_scales(kernel, near: Sequence[Launch], far: Sequence[Launch]) -> tuple[Tuned, Tuned]:
    """A kernel of the backward for units of 64 or 128 tokens and for those of 512: (SPLIT, BC, warps, stages)."""
    near_configs, far_configs = (
        [
            triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
            for split, columns, warps, stages in found
        ]
        for found in (near, far)
    )
    key = ["C", "K", "V", "GROUP"]
    return Tuned(kernel, near_configs, key), Tuned(kernel, far_configs, key)
