"""Tiles that the kernels of PaTH attention share.

The tensors that kernels pass to each other are in blocks: [M, heads, C, KP] for M rows of the chunk table, C tokens a
block and a width padded to a power of two, zeros after the sequence's end and beyond the width. So only inputs, which
are on the token axis, are read with masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.masked_tiles import load_head_rows


@triton.jit
def tokens_fp32(x, token, end, head, HEADS, column, WIDTH):
    """`load_head_rows` in fp32."""
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
    inverse = tl.where(row == column, 1.0, 0.0)
    # Y ← Y − Y·L'·Y for blocks of size b = 2^level
    for level in range(7 if C == 128 else 6):
        below = (row >> level + 1 == column >> level + 1) & (row >> level > column >> level)
        step = tl.dot(tl.where(below, lower, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, step, input_precision=PRECISION)
    return inverse


@triton.jit
def block_of_span(firsts, span, SPLIT, BLOCKS):
    """The program's sequence, block in the span, part of the block, and rows of the table.

    Programs of axis 0 are sequences · BLOCKS · SPLIT.

    The rows are the block's own and the end of its sequence's; a block exists where the first is below the second.
    """
    sequence = tl.program_id(0) // (BLOCKS * SPLIT)
    place = (tl.program_id(0) // SPLIT) % BLOCKS
    own = tl.load(firsts + sequence) + span * BLOCKS + place
    return (
        sequence,
        place,
        tl.program_id(0) % SPLIT,
        own.to(tl.int64),
        tl.load(firsts + sequence + 1).to(tl.int64),
    )
