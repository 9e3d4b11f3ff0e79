"""The inverse of a chunk's triangle I + A·Diag(β), for A of triton_intra_chunk.py.

A chunk's errors follow from that inverse. Stored is Z, zero on and above the diagonal:

    Z = (I + A·Diag(β))⁻¹·A        (I + A·Diag(β))⁻¹ = I − Z·Diag(β)        (I + Diag(β)·A)⁻¹ = I − Diag(β)·Z

built by doubling: of two neighbouring blocks on the diagonal, Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁). No power
of A is taken, so that equal keys, whose powers grow like binomials, cost no digits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_tiles import BLOCK, CHUNK, across_middle, block_places
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_scalars, store_head_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _solve_block(a, left_beta, right_beta, PRECISION: tl.constexpr):
    """Z [N, 16, 16] of the blocks a of A on the diagonal; β by rows [N, 16, 1] and by columns [N, 1, 16]."""
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    # Z₂₁ = A₂₁ of single tokens, whose Z₁₁ and Z₂₂ are 0
    z = tl.where(across_middle(row, col, 1), a, 0.0)
    for level in tl.static_range(1, 4):
        corner = tl.where(across_middle(row, col, 2**level), a, 0.0)
        # (I − Z₂₂·Diag(β₂))·A₂₁
        corner -= tl.dot(z * right_beta, corner, input_precision=PRECISION)
        # Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁)
        z += corner - tl.dot(corner, left_beta * z, input_precision=PRECISION)
    return z


@triton.jit
def _merge(
    z, a, beta, first, last, head, H,
    PRECISION: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Z [2N, HALF, HALF] of blocks on the diagonal -> [N, 2·HALF, 2·HALF] of pairs of them."""
    left, right = tl.split(tl.permute(tl.reshape(z, (N, 2, HALF, HALF)), (0, 2, 3, 1)))
    pair = tl.arange(0, N)[:, None, None] * (2 * HALF)
    row = tl.arange(0, HALF)[None, :, None]
    col = tl.arange(0, HALF)[None, None, :]
    token = first + pair + HALF + row
    corner = tl.load(a + (token * H + head) * C + pair + col, mask=token < last, other=0.0)
    # Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁)
    right_beta = load_head_scalars(beta, first + pair + HALF + col, last, head, H)
    corner -= tl.dot(right * right_beta, corner, input_precision=PRECISION)
    left_beta = load_head_scalars(beta, first + pair + row, last, head, H)
    corner -= tl.dot(corner, left_beta * left, input_precision=PRECISION)
    # [[Z₁₁, 0], [Z₂₁, Z₂₂]]
    above = tl.join(left, tl.zeros_like(left))
    below = tl.join(corner, right)
    above = tl.reshape(tl.permute(above, (0, 1, 3, 2)), (N, HALF, 2 * HALF))
    below = tl.reshape(tl.permute(below, (0, 1, 3, 2)), (N, HALF, 2 * HALF))
    return tl.reshape(tl.permute(tl.join(above, below), (0, 3, 1, 2)), (N, 2 * HALF, 2 * HALF))


@triton.jit
def _solve(a, beta, z, table, cu, H, PRECISION: tl.constexpr, C: tl.constexpr):
    """Z [tokens, H, C] of a chunk of 64 tokens: within blocks of 16, then pairs of blocks, then pairs of pairs.

    inputs     a A [tokens, H, C]; beta [tokens, H]
    outputs    z
    layout     table, cu
    sizes      H heads
    constants  PRECISION of products; C tokens a chunk
    """
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        places, row_token = block_places(first, head, H, C)
        blocks = tl.load(a + places, mask=row_token < last, other=0.0)
        by_token = load_head_scalars(beta, token, last, head, H)
        left = tl.reshape(by_token, (C // BLOCK, BLOCK, 1))
        right = tl.reshape(by_token, (C // BLOCK, 1, BLOCK))
        # Z = (I + A·Diag(β))⁻¹·A
        solved = _solve_block(blocks, left, right, PRECISION)
        solved = _merge(solved, a, beta, first, last, head, H, PRECISION, 2, BLOCK, C)
        solved = _merge(solved, a, beta, first, last, head, H, PRECISION, 1, 2 * BLOCK, C)
        store_head_rows(z, tl.reshape(solved, (C, C)), token, last, head, H, tl.arange(0, C), C)


_solve_tuned = Tuned(_solve, [triton.Config({}, num_warps=warps) for warps in (4, 2, 1)], ["C", "PRECISION"])


def invert_triangle(a: Tensor, beta: Tensor, layout: ChunkLayout, dtype: torch.dtype) -> Tensor:
    """Compute Z [B·T, H, CHUNK] in `dtype` from A [B·T, H, CHUNK] in fp32 and beta [B, T, H].

    Where Z is rounded to 16 bits, products are in TF32. With random or correlated keys their errors are a tenth of that
    rounding; with nearly equal keys and a β near 2, where 16 bits miss the field's criterion by themselves, outputs
    lose a fifth more.
    """
    z, heads = torch.empty_like(a, dtype=dtype), beta.shape[2]
    precision = "ieee" if dtype == torch.float32 else "tf32"
    _solve_tuned[(layout.chunks, heads)](
        a, beta, z, layout.table, layout.cu, heads, PRECISION=precision, C=CHUNK
    )
    return z
