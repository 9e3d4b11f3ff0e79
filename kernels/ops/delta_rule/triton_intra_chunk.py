"""Decayed products of a chunk's tokens, device functions of triton_prepare.py.

    P_ij = Σ_c q_ic·k_jc·exp(Σ_{j<l≤i} g_lc) for j ≤ i        A_ij = likewise with k_i, for j < i

Where every channel has its own gate, these are no matrix products. But between the right and the left half of a
chunk the decay is the product of two factors ≤ 1, to and from the middle, and so it is within each half: log2(C)
levels of products together hold every pair once. Levels below 16 tokens are products of 16×16 blocks on the diagonal.

Both functions take

    inputs     q, k [tokens, HQ or HK, K]; g [tokens, H] or [tokens, H, K]
    place      token [C] and last, of a chunk; head
    sizes      H, HQ, HK heads
    constants  dtype of products; K key width; C tokens a chunk; BK columns a tile

and return, in fp32, P [C, C], A's 16×16 blocks on the diagonal [C/16, 16, 16], and a [C, C] that has A outside of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.delta_rule.triton_tiles import (
    BLOCK,
    across_middle,
    decay_between,
    decay_to_middle,
    diagonal_blocks,
    load_gates,
    load_shared_gates,
    spread_blocks,
)
from kernels.triton_common.masked_tiles import load_head_rows


@triton.jit
def products_shared(
    q,
    k,
    g,
    token,
    last,
    head,
    H,
    HQ,
    HK,
    dtype: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
):
    """P [C, C] and both parts of A under gates that a head's channels share; arguments and results: see above."""
    product = tl.zeros((C, C), tl.float32)
    overlap = tl.zeros((C, C), tl.float32)
    # q_i·k_j and k_i·k_j
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(dtype)
        queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(dtype)
        product += tl.dot(queries, tl.trans(keys), input_precision="ieee")
        overlap += tl.dot(keys, tl.trans(keys), input_precision="ieee")
    column = tl.arange(0, C)
    # exp(Σ_{j<l≤i} g_l)
    between = decay_between(load_shared_gates(g, token, last, head, H), C)
    # P_ij = q_i·k_j·exp(Σ_{j<l≤i} g_l) for j ≤ i
    product *= between
    # A_ij = k_i·k_j·exp(Σ_{j<l≤i} g_l) for j < i
    overlap = tl.where(column[:, None] > column[None], overlap * between, 0.0)
    return product, diagonal_blocks(overlap, C), overlap


@triton.jit
def products_channels(
    q,
    k,
    g,
    token,
    last,
    head,
    H,
    HQ,
    HK,
    dtype: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
):
    """P [C, C] and both parts of A under a gate for every channel; arguments and results: see above."""
    place = tl.arange(0, C)
    gate_type: tl.constexpr = g.dtype.element_ty
    far_p, far_a = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    near_p = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
    near_a = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
    same = tl.zeros((C,), tl.float32)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
        queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
        gates = load_gates(g, token, last, head, H, column, K)
        # P_ii = q_i·k_i
        same += tl.sum(queries * keys, axis=1)
        # i > j of two halves of 1 … 8 tokens: decay_i = exp(g_{m+1} + … + g_i) from their middle m on, and
        # decay_j = exp(g_{j+1} + … + g_m) up to it;
        # P_ij = (q_i⊙decay_i)·(k_j⊙decay_j),  A_ij = (k_i⊙decay_i)·(k_j⊙decay_j)
        for level in tl.static_range(4):
            decay = decay_to_middle(gates, gate_type, 2**level, C)
            left = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
            right = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
            meet = across_middle(row, col, 2**level)
            transposed = tl.permute(left, (0, 2, 1))
            near_p += tl.where(meet, tl.dot(right, transposed, input_precision="ieee"), 0.0)
            near_a += tl.where(meet, tl.dot(left, transposed, input_precision="ieee"), 0.0)
        # likewise i and j of two halves of 16 and of 32 tokens
        for level in tl.static_range(2):
            decay = decay_to_middle(gates, gate_type, BLOCK * 2**level, C)
            left = (keys * decay).to(dtype)
            right = (queries * decay).to(dtype)
            meet = across_middle(place[:, None], place[None], BLOCK * 2**level)
            far_p += tl.where(meet, tl.dot(right, tl.trans(left), input_precision="ieee"), 0.0)
            far_a += tl.where(meet, tl.dot(left, tl.trans(left), input_precision="ieee"), 0.0)
    near_p += tl.where(row == col, tl.reshape(same, (C // BLOCK, BLOCK, 1)), 0.0)
    return far_p + spread_blocks(near_p, C), near_a, far_a
