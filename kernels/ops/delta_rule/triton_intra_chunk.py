"""The intra-chunk step: decayed products of a chunk's tokens; the triangle of A is inverted in triton_triangle.py.

    P_ij = Σ_c q_ic·k_jc·exp(Σ_{j<l≤i} g_lc) for j ≤ i        A_ij = likewise with k_i, for j < i

Where every channel has its own gate, these are no matrix products. But between the right and the left half of a
chunk the decay is the product of two factors ≤ 1, to and from the middle, and so it is within each half: log2(C)
levels of products together hold every pair once. Levels below 16 tokens are products of 16×16 blocks on the diagonal.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import Inputs
from kernels.ops.delta_rule.triton_tiles import (
    BLOCK,
    CHUNK,
    across_middle,
    block_places,
    decay_between,
    decay_to_middle,
    load_gates,
)
from kernels.ops.delta_rule.triton_triangle import invert_triangle
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_rows, store_head_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _products_shared(
    q, k, g, p, a, table, cu, H, HQ, HK,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """P and A under gates that a head's channels share.

    inputs     q, k [tokens, HQ or HK, K]; g [tokens, H]
    outputs    p, a [tokens, H, C]
    layout     table, cu
    sizes      H, HQ, HK heads
    constants  K key width; C tokens a chunk; BK columns a tile
    """
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        product = tl.zeros((C, C), tl.float32)
        overlap = tl.zeros((C, C), tl.float32)
        # q_i·k_j and k_i·k_j
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(p.dtype.element_ty)
            queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(p.dtype.element_ty)
            product += tl.dot(queries, tl.trans(keys), input_precision="ieee")
            overlap += tl.dot(keys, tl.trans(keys), input_precision="ieee")
        column = tl.arange(0, C)
        # exp(Σ_{j<l≤i} g_l)
        between = decay_between(tl.sum(load_gates(g, token, last, head, H, column, 1, True), axis=1), C)
        # P_ij = q_i·k_j·exp(Σ_{j<l≤i} g_l) for j ≤ i
        store_head_rows(p, product * between, token, last, head, H, column, C)
        # A_ij = k_i·k_j·exp(Σ_{j<l≤i} g_l) for j < i
        overlap = tl.where(column[:, None] > column[None], overlap * between, 0.0)
        store_head_rows(a, overlap, token, last, head, H, column, C)


@triton.jit
def _products_channels(
    q, k, g, p, a, table, cu, H, HQ, HK,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """P and A under a gate for every channel; arguments as in `_products_shared`, with g [tokens, H, K]."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        place = tl.arange(0, C)
        dtype: tl.constexpr = g.dtype.element_ty
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
            gates = load_gates(g, token, last, head, H, column, K, False)
            # P_ii = q_i·k_i
            same += tl.sum(queries * keys, axis=1)
            # i > j of two halves of 1 … 8 tokens: decay_i = exp(g_{m+1} + … + g_i) from their middle m on, and
            # decay_j = exp(g_{j+1} + … + g_m) up to it;
            # P_ij = (q_i⊙decay_i)·(k_j⊙decay_j),  A_ij = (k_i⊙decay_i)·(k_j⊙decay_j)
            for level in tl.static_range(4):
                decay = decay_to_middle(gates, dtype, 2**level, C)
                left = tl.reshape((keys * decay).to(p.dtype.element_ty), (C // BLOCK, BLOCK, BK))
                right = tl.reshape((queries * decay).to(p.dtype.element_ty), (C // BLOCK, BLOCK, BK))
                meet = across_middle(row, col, 2**level)
                transposed = tl.permute(left, (0, 2, 1))
                near_p += tl.where(meet, tl.dot(right, transposed, input_precision="ieee"), 0.0)
                near_a += tl.where(meet, tl.dot(left, transposed, input_precision="ieee"), 0.0)
            # likewise i and j of two halves of 16 and of 32 tokens
            for level in tl.static_range(2):
                decay = decay_to_middle(gates, dtype, BLOCK * 2**level, C)
                left = (keys * decay).to(p.dtype.element_ty)
                right = (queries * decay).to(p.dtype.element_ty)
                meet = across_middle(place[:, None], place[None], BLOCK * 2**level)
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


def _tiles(*sizes: tuple[int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BK": width}, num_warps=warps, num_stages=stages) for width, warps, stages in sizes
    ]


_products_shared_tuned = Tuned(
    _products_shared, _tiles((64, 8, 1), (32, 8, 2), (64, 8, 2), (32, 4, 1)), ["K"]
)
_products_channels_tuned = Tuned(
    _products_channels, _tiles((64, 8, 1), (64, 4, 1), (32, 4, 1), (16, 4, 1)), ["K"]
)


def intra_chunk(x: Inputs, layout: ChunkLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute P and Z [B·T, H, CHUNK] in `dtype`; A is fp32 and lives only here."""
    p = torch.empty(*x.beta.shape, CHUNK, dtype=dtype, device=x.q.device)
    a = torch.empty(*x.beta.shape, CHUNK, dtype=torch.float32, device=x.q.device)
    (heads, q_heads, k_heads, _), grid = x.head_counts, (layout.chunks, x.heads)
    products = _products_shared_tuned if x.shared else _products_channels_tuned
    products[grid](
        x.q, x.k, x.g, p, a, layout.table, layout.cu, heads, q_heads, k_heads, K=x.widths["K"], C=CHUNK
    )
    return p, invert_triangle(a, x.beta, layout, dtype)
