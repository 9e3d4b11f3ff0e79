"""Each block of tokens by itself, by the formulas of blocks.py: its path in compact form, logits, sums of gates.

Linear in T, so nothing here is hot: products take fp32 operands, on tensor cores (tf32) where the inputs have 16 bit.
Matrices [C, C] stay whole, wide ones go by in tiles of BK columns. Forward:

    compact  a block and KV head     inverse Y = (I + Diag(β)·tril(W·Wᵀ, −1))⁻¹, skipped = Y·Diag(β)·tril(W·Kᵀ, −1),
                                     U = Y·Diag(β)·W, and k at the end of the block: K − skippedᵀ·W
    turn     a block and KV head     D = Uᵀ·W: the product of the block's Householder matrices is I − D
    inner    a block and query head  passed = tril(s·Q·Wᵀ), logits s·Q·Kᵀ − passed·skipped + gates (−∞ where j > i),
                                     q at the start of the block: s·Q − passed·U; sums of gates before and after;
                                     q and these sums times log₂ e, for scores across blocks as powers of two
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import LOG2E, load_block, store_block, tokens_fp32, unit_inverse
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_scalars


@triton.jit
def compact(
    k, w, beta, inverse, skipped, u, key, table, cu, HEADS, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, SOLVING: tl.constexpr,
):  # fmt: skip
    """The compact form of a block's path, and its keys at the end of the block; HEADS: KV heads.

    in   k, w [T, HEADS, WIDTH], beta [T, HEADS]
    out  inverse, skipped [M, HEADS, C, C], u, key [M, HEADS, C, K]; without w only key
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row = tl.arange(0, C)
        token, own = first + row, block * HEADS + head
        if w is not None:
            gram, met = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
            for start in range(0, K, BK):
                column = start + tl.arange(0, BK)
                w_tile = tokens_fp32(w, token, end, head, HEADS, column, WIDTH)
                keys = tokens_fp32(k, token, end, head, HEADS, column, WIDTH)
                # W·Wᵀ and W·Kᵀ
                gram += tl.dot(w_tile, tl.trans(w_tile), input_precision=PRECISION)
                met += tl.dot(w_tile, tl.trans(keys), input_precision=PRECISION)
            earlier = row[None] < row[:, None]
            beta_rows = load_head_scalars(beta, token, end, head, HEADS)
            # Y = (I + Diag(β)·tril(W·Wᵀ, −1))⁻¹
            inverse_tile = unit_inverse(tl.where(earlier, beta_rows[:, None] * gram, 0.0), C, SOLVING)
            store_block(inverse + own * C * C, inverse_tile, row, row, C)
            inverse_tile *= beta_rows[None]
            # skipped = Y·Diag(β)·tril(W·Kᵀ, −1)
            skipped_tile = tl.dot(inverse_tile, tl.where(earlier, met, 0.0), input_precision=PRECISION)
            store_block(skipped + own * C * C, skipped_tile, row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = tokens_fp32(k, token, end, head, HEADS, column, WIDTH)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, head, HEADS, column, WIDTH)
                # k̃ = K − skippedᵀ·W
                keys -= tl.dot(tl.trans(skipped_tile), w_tile, input_precision=PRECISION)
                # U = Y·Diag(β)·W
                u_tile = tl.dot(inverse_tile, w_tile, input_precision=PRECISION)
                store_block(u + own * C * K, u_tile, row, column, K)
            store_block(key + own * C * K, keys, row, column, K)


@triton.jit
def turn(
    u, w, turns, table, cu, HEADS, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """D = Uᵀ·W, a tile [BK, BK] a program: u [M, HEADS, C, K], w [T, HEADS, WIDTH] -> turns [M, HEADS, K, K]."""
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own = tl.arange(0, C), block * HEADS + head
        above = (tl.program_id(2) // (K // BK)) * BK + tl.arange(0, BK)
        column = (tl.program_id(2) % (K // BK)) * BK + tl.arange(0, BK)
        # D = Uᵀ·W
        w_tile = tokens_fp32(w, first + row, end, head, HEADS, column, WIDTH)
        product = tl.dot(
            tl.trans(load_block(u + own * C * K, row, above, K)), w_tile, input_precision=PRECISION
        )
        store_block(turns + own * K * K, product, above, column, K)


@triton.jit
def _gate_sums(g, before, after, token, end, head, HEADS, own, C: tl.constexpr):
    """Sum gates: Σ_{s=j+1..i} g_s as [i, j] is returned, log₂ e·the sums before and after every token are stored.

    Sums of terms of one sign only: a difference of two long sums would be inexact.
    """
    row = tl.arange(0, C)
    gate = load_head_scalars(g, token, end, head, HEADS)
    # before_i = Σ_{s=first..i} g_s
    tl.store(before + own * C + row, tl.cumsum(gate, 0) * LOG2E)
    # after_j = Σ_{s=j+1..last} g_s
    later = tl.load(g + (token + 1) * HEADS + head, mask=(token + 1 < end) & (row + 1 < C), other=0.0)
    tl.store(after + own * C + row, tl.cumsum(later.to(tl.float32), 0, reverse=True) * LOG2E)
    # Σ_{s=j+1..i} g_s
    return tl.cumsum(tl.where(row[:, None] > row[None], gate[:, None], 0.0), 0)


@triton.jit
def inner(
    q, k, w, g, skipped, u, query, logits, passed, before, after, table, cu, scale, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits inside a block, and its queries at the start of the block, of one head.

    in   q [T, HEADS, WIDTH], k, w [T, KV_HEADS, WIDTH], g [T, HEADS]; skipped, u of `compact`
    out  query [M, HEADS, C, K], logits [M, HEADS, C, C], before, after [M, HEADS, C];
         passed [M, HEADS, C, C], or None: only the backward reads it
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, kv = tl.arange(0, C), head // GROUP
        token, own, own_kv = first + row, block * HEADS + head, block * (HEADS // GROUP) + kv
        until = row[None] <= row[:, None]
        score, passed_tile = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            keys = tokens_fp32(k, token, end, kv, HEADS // GROUP, column, WIDTH)
            # s·Q·Kᵀ and s·Q·Wᵀ
            score += tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, HEADS // GROUP, column, WIDTH)
                passed_tile += tl.dot(queries, tl.trans(w_tile), input_precision=PRECISION)
        if w is not None:
            # passed = tril(s·Q·Wᵀ),   logits = s·Q·Kᵀ − passed·skipped + gates, −∞ where j > i
            passed_tile = tl.where(until, passed_tile, 0.0)
            score -= tl.dot(
                passed_tile, load_block(skipped + own_kv * C * C, row, row, C), input_precision=PRECISION
            )
            if passed is not None:
                store_block(passed + own * C * C, passed_tile, row, row, C)
        if g is not None:
            score += _gate_sums(g, before, after, token, end, head, HEADS, own, C)
        store_block(logits + own * C * C, tl.where(until, score, float("-inf")), row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            if w is not None:
                rows = load_block(u + own_kv * C * K, row, column, K)
                # q̃ = s·Q − passed·U
                queries -= tl.dot(passed_tile, rows, input_precision=PRECISION)
            store_block(query + own * C * K, queries * LOG2E, row, column, K)
