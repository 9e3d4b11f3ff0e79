"""The inverse of a chunk's triangle I + A·Diag(β), for A of triton_intra_chunk.py: a device function.

A chunk's errors follow from that inverse. Stored is Z, zero on and above the diagonal:

    Z = (I + A·Diag(β))⁻¹·A        (I + A·Diag(β))⁻¹ = I − Z·Diag(β)        (I + Diag(β)·A)⁻¹ = I − Diag(β)·Z

built by doubling: of two neighbouring blocks on the diagonal, Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁). No power
of A is taken, so that equal keys, whose powers grow like binomials, cost no digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.delta_rule.triton_tiles import BLOCK, across_middle, spread_blocks


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
def invert_triangle(blocks, a, beta, PRECISION: tl.constexpr, C: tl.constexpr):
    """Z [C, C] of a chunk of 64 tokens: within blocks of 16, then pairs of blocks, then pairs of pairs.

    inputs     blocks [C/16, 16, 16] A on its diagonal; a [C, C] A outside of them; beta [C]
    constants  PRECISION of products; C tokens a chunk
    """
    left = tl.reshape(beta, (C // BLOCK, BLOCK, 1))
    right = tl.reshape(beta, (C // BLOCK, 1, BLOCK))
    z = spread_blocks(_solve_block(blocks, left, right, PRECISION), C)
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        corner = tl.where(across_middle(row, col, BLOCK * 2**level), a, 0.0)
        # (I − Z₂₂·Diag(β₂))·A₂₁
        corner -= tl.dot(z * beta[None], corner, input_precision=PRECISION)
        # Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁)
        z += corner - tl.dot(corner, beta[:, None] * z, input_precision=PRECISION)
    return z
