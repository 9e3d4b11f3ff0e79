"""What the tokens of a chunk have to do with each other: decayed products, and the triangle that they make.

    P_ij = Σ_c q_ic·k_jc·exp(Σ_{j<l≤i} g_lc) for j ≤ i        A_ij = likewise with k_i, for j < i

Where every channel has its own gate, these are no matrix products. So a chunk is halved: between its right and its left
half the decay is the product of two factors ≤ 1 around the middle, each half is treated the same way, and log2(C)
products together hold every pair once. Halves below 16 tokens are products of 16×16 blocks on the diagonal.

What a chunk adds to its states follows from the inverse of I + A·Diag(β). Kept is Z, zero on and above the diagonal:

    Z = (I + A·Diag(β))⁻¹·A        (I + A·Diag(β))⁻¹ = I − Z·Diag(β)        (I + Diag(β)·A)⁻¹ = I − Diag(β)·Z

built by doubling: of two neighbouring blocks on the diagonal, Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁). No power
of A is taken, so that equal keys, whose powers grow like binomials, cost no digits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_tiles import (
    CHUNK,
    decay_between,
    decay_to_middle,
    halves_meet,
    load_column,
    load_gates,
    load_rows,
    store_rows,
)
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned

BLOCK = tl.constexpr(16)
"""The least side of a tensor core's product."""


@triton.jit
def block_places(first, head, H, C: tl.constexpr):
    """Places of the 16×16 blocks on the diagonal, [C/16, 16, 16], in products [tokens, H, C]; their rows' tokens."""
    block = tl.arange(0, C // BLOCK)[:, None, None] * BLOCK
    row = first + block + tl.arange(0, BLOCK)[None, :, None]
    return (row * H + head) * C + block + tl.arange(0, BLOCK)[None, None, :], row


@triton.jit
def _products_shared(
    q, k, g, p, a, table, cu, H, HQ, HK,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """P and A [tokens, H, C] under gates [tokens, H]."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        product = tl.zeros((C, C), tl.float32)
        overlap = tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = load_rows(k, token, last, head // (H // HK), HK, column, K).to(p.dtype.element_ty)
            queries = load_rows(q, token, last, head // (H // HQ), HQ, column, K).to(p.dtype.element_ty)
            product += tl.dot(queries, tl.trans(keys), input_precision="ieee")
            overlap += tl.dot(keys, tl.trans(keys), input_precision="ieee")
        column = tl.arange(0, C)
        between = decay_between(tl.sum(load_gates(g, token, last, head, H, column, 1, True), axis=1), C)
        store_rows(p, product * between, token, last, head, H, column, C)
        overlap = tl.where(column[:, None] > column[None], overlap * between, 0.0)
        store_rows(a, overlap, token, last, head, H, column, C)


@triton.jit
def _products_channels(
    q, k, g, p, a, table, cu, H, HQ, HK,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """P and A [tokens, H, C] under gates [tokens, H, K]."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        place = tl.arange(0, C)
        far_p, far_a = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        near_p = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
        near_a = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
        same = tl.zeros((C,), tl.float32)
        row = tl.arange(0, BLOCK)[None, :, None]
        col = tl.arange(0, BLOCK)[None, None, :]
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = load_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
            queries = load_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
            gates = load_gates(g, token, last, head, H, column, K, False)
            after = load_gates(g, token + 1, last, head, H, column, K, False)
            same += tl.sum(queries * keys, axis=1)
            for level in tl.static_range(4):
                decay = decay_to_middle(gates, after, 2**level, C, BK)
                left = tl.reshape((keys * decay).to(p.dtype.element_ty), (C // BLOCK, BLOCK, BK))
                right = tl.reshape((queries * decay).to(p.dtype.element_ty), (C // BLOCK, BLOCK, BK))
                meet = halves_meet(row, col, 2**level)
                transposed = tl.permute(left, (0, 2, 1))
                near_p += tl.where(meet, tl.dot(right, transposed, input_precision="ieee"), 0.0)
                near_a += tl.where(meet, tl.dot(left, transposed, input_precision="ieee"), 0.0)
            for level in tl.static_range(2):
                decay = decay_to_middle(gates, after, BLOCK * 2**level, C, BK)
                left = (keys * decay).to(p.dtype.element_ty)
                right = (queries * decay).to(p.dtype.element_ty)
                meet = halves_meet(place[:, None], place[None], BLOCK * 2**level)
                far_p += tl.where(meet, tl.dot(right, tl.trans(left), input_precision="ieee"), 0.0)
                far_a += tl.where(meet, tl.dot(left, tl.trans(left), input_precision="ieee"), 0.0)
        near_p += tl.where(row == col, tl.reshape(same, (C // BLOCK, BLOCK, 1)), 0.0)
        far = (place[:, None] // BLOCK != place[None] // BLOCK) & (token < last)[:, None]
        places = (token * H + head)[:, None] * C + place[None]
        tl.store(p + places, far_p.to(p.dtype.element_ty), mask=far)
        tl.store(a + places, far_a, mask=far)
        places, row_token = block_places(first, head, H, C)
        tl.store(p + places, near_p.to(p.dtype.element_ty), mask=row_token < last)
        tl.store(a + places, near_a, mask=row_token < last)


@triton.jit
def _solve_block(a, left_beta, right_beta):
    """Z [N, 16, 16] of the blocks a of A on the diagonal; β by rows [N, 16, 1] and by columns [N, 1, 16]."""
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    z = tl.where(halves_meet(row, col, 1), a, 0.0)
    for level in tl.static_range(1, 4):
        corner = tl.where(halves_meet(row, col, 2**level), a, 0.0)
        corner -= tl.dot(z * right_beta, corner, input_precision="ieee")
        z += corner - tl.dot(corner, left_beta * z, input_precision="ieee")
    return z


@triton.jit
def _merge(z, a, beta, first, last, head, H, N: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr):
    """Z [2N, HALF, HALF] of blocks on the diagonal -> [N, 2·HALF, 2·HALF] of pairs of them."""
    left, right = tl.split(tl.permute(tl.reshape(z, (N, 2, HALF, HALF)), (0, 2, 3, 1)))
    pair = tl.arange(0, N)[:, None, None] * (2 * HALF)
    row = tl.arange(0, HALF)[None, :, None]
    col = tl.arange(0, HALF)[None, None, :]
    token = first + pair + HALF + row
    corner = tl.load(a + (token * H + head) * C + pair + col, mask=token < last, other=0.0)
    corner -= tl.dot(
        right * load_column(beta, first + pair + HALF + col, last, head, H), corner, input_precision="ieee"
    )
    corner -= tl.dot(
        corner, left * load_column(beta, first + pair + row, last, head, H), input_precision="ieee"
    )
    above = tl.join(left, tl.zeros_like(left))
    below = tl.join(corner, right)
    above = tl.reshape(tl.permute(above, (0, 1, 3, 2)), (N, HALF, 2 * HALF))
    below = tl.reshape(tl.permute(below, (0, 1, 3, 2)), (N, HALF, 2 * HALF))
    return tl.reshape(tl.permute(tl.join(above, below), (0, 3, 1, 2)), (N, 2 * HALF, 2 * HALF))


@triton.jit
def _solve(a, beta, z, table, cu, H, C: tl.constexpr):
    """Z [tokens, H, C] of a chunk of 64 tokens: within blocks of 16, then pairs of blocks, then pairs of pairs."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        places, row_token = block_places(first, head, H, C)
        blocks = tl.load(a + places, mask=row_token < last, other=0.0)
        by_token = load_column(beta, token, last, head, H)
        left = tl.reshape(by_token, (C // BLOCK, BLOCK, 1))
        right = tl.reshape(by_token, (C // BLOCK, 1, BLOCK))
        solved = _solve_block(blocks, left, right)
        solved = _merge(solved, a, beta, first, last, head, H, 2, BLOCK, C)
        solved = _merge(solved, a, beta, first, last, head, H, 1, 2 * BLOCK, C)
        store_rows(z, tl.reshape(solved, (C, C)), token, last, head, H, tl.arange(0, C), C)


_TILES = [
    triton.Config({"BK": width}, num_warps=warps, num_stages=stages)
    for width, warps, stages in ((64, 8, 1), (32, 8, 2), (64, 8, 2), (32, 4, 1))
]
_products_shared_tuned = Tuned(_products_shared, _TILES, ["K"])
_products_channels_tuned = Tuned(_products_channels, _TILES, ["K"])
_solve_tuned = Tuned(_solve, [triton.Config({}, num_warps=warps) for warps in (4, 8)], ["C"])


def products_and_triangle(
    q: Tensor, k: Tensor, g: Tensor, beta: Tensor, table: Tensor, cu: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """P and Z [B·T, H, CHUNK] in `dtype`; A is fp32 and lives only here."""
    heads, width = beta.shape[2], q.shape[3]
    shape = (*beta.shape, CHUNK)
    p, z = (torch.empty(shape, dtype=dtype, device=q.device) for _ in range(2))
    a = torch.empty(shape, dtype=torch.float32, device=q.device)
    grid = (len(table), heads)
    products = _products_shared_tuned if g.dim() == 3 else _products_channels_tuned
    products[grid](q, k, g, p, a, table, cu, heads, q.shape[2], k.shape[2], K=width, C=CHUNK)
    _solve_tuned[grid](a, beta, z, table, cu, heads, C=CHUNK)
    return p, z
