"""Softmax over blocks of keys, from the query's own block back to the first, with the queries carried along.

A program has C / SPLIT queries of one block and head. In their own block the logits are ready. They are scored with the
keys of an earlier block, which are transformed to its end, and then go through the block: q ← q − q·Dᵀ, which costs K²
a query and block, where scores cost C·(K + V). The sum of gates runs on across blocks, outside the scale, in fp32.
All of them carry a factor log₂ e, so that weights are powers of two.

    o_i = Σ_j p_ij·v_j,   p_ij = e^(a_ij − lse_i),   lse_i = log Σ_j e^(a_ij),
    a_ij = q̃_i·k̃_j + Σ_{s=j+1..i} g_s    q̃_i: scale·q_i turned to the end of j's block; k̃_j: k_j turned to there

Sizes of the kernels of this operation:

    HEADS, GROUP      query heads, and how many share a KV head
    WIDTH, VALUES     widths of keys and values; K, V: padded to powers of two
    C, SPLIT          tokens of a block, programs that divide its rows; BC, BK: columns of a tile
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import LN2, LOG2E, load_block, minus_turned
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_rows, store_head_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _absorb(score, values, total, top, weight):
    """Add a tile of keys to the running softmax: total = Σ 2^(a − m)·v, top = m = max a, weight = Σ 2^(a − m)."""
    largest = tl.maximum(top, tl.max(score, 1))
    shrink, p = tl.exp2(top - largest), tl.exp2(score - largest[:, None])
    total = total * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee")
    return total, largest, weight * shrink + tl.sum(p, 1)


@triton.jit
def _attend(
    query, key, v, turns, logits, before, after, out, lse, table, cu, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Attention of the queries of one block and head.

    in      query [M, HEADS, C, K], key [M, KV_HEADS, C, K], turns [M, KV_HEADS, K, K], logits [M, HEADS, C, C],
            before, after [M, HEADS, C], as triton_prepare.py makes them; v [T, KV_HEADS, VALUES]
    out     out [T, HEADS, VALUES], lse [T, HEADS]
    layout  table, cu of chunks of C tokens
    """
    block, part = (tl.program_id(0) // SPLIT).to(tl.int64), tl.program_id(0) % SPLIT
    head, KV_HEADS = tl.program_id(1), HEADS // GROUP
    kv = head // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row = part * (C // SPLIT) + tl.arange(0, C // SPLIT)
        k_column, v_column = tl.arange(0, K), tl.arange(0, V)
        own = block * HEADS + head
        total = tl.zeros((C // SPLIT, V), tl.float32)
        top = tl.full((C // SPLIT,), float("-inf"), tl.float32)
        weight = tl.zeros((C // SPLIT,), tl.float32)
        for start in range(0, (part + 1) * (C // SPLIT), BC):
            column = start + tl.arange(0, BC)
            # inside the block: a_ij is ready, −∞ where j > i
            score = load_block(logits + own * C * C, row, column, C) * LOG2E
            values = load_head_rows(v, first + column, end, kv, KV_HEADS, v_column, VALUES)
            total, top, weight = _absorb(score, values, total, top, weight)
        # q̃_i = log₂ e·scale·H_first·…·H_i·q_i at the start of the block, and log₂ e·Σ_{s=first..i} g_s
        q_turned = load_block(query + own * C * K, row, k_column, K).to(tl.float32)
        gate_sum = tl.zeros((C // SPLIT,), tl.float32)
        if before is not None:
            gate_sum += tl.load(before + own * C + row)
        number = tl.load(table + block * 2 + 1)
        for back in range(1, number + 1):
            # the blocks before, from the last to the first
            other = block - back
            for start in range(0, C, BC):
                column = start + tl.arange(0, BC)
                keys = load_block(key + (other * KV_HEADS + kv) * C * K, column, k_column, K)
                # a_ij = q̃_i·k̃_j + Σ_{s=j+1..i} g_s
                score = tl.dot(q_turned.to(keys.dtype), tl.trans(keys), input_precision="ieee")
                if after is not None:
                    score += gate_sum[:, None] + tl.load(after + (other * HEADS + head) * C + column)[None]
                token = first - back * C + column
                values = load_head_rows(v, token, end, kv, KV_HEADS, v_column, VALUES)
                total, top, weight = _absorb(score, values, total, top, weight)
            if turns is not None:
                # through the block: q̃ ← H_first·…·H_last·q̃ = q̃ − D·q̃
                q_turned = minus_turned(q_turned, turns + (other * KV_HEADS + kv) * K * K, K, True)
            if before is not None:
                # and the sum of its gates
                gate_sum += tl.load(before + (other * HEADS + head) * C + C - 1)
        # o_i = total_i / weight_i,   lse_i = ln 2·(m_i + log₂ weight_i)
        store_head_rows(out, total / weight[:, None], first + row, end, head, HEADS, v_column, VALUES)
        at = (first + row) * HEADS + head
        tl.store(lse + at, (top + tl.log2(weight)) * LN2, mask=first + row < end)


attend = Tuned(
    _attend,
    [
        triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
        for split, columns, warps, stages in (
            (1, 64, 8, 2), (1, 64, 4, 2), (1, 64, 4, 1), (1, 32, 4, 3), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2),
            (2, 64, 4, 1), (2, 32, 4, 1),
        )
    ],
    ["C", "K", "V", "GROUP"],
)  # fmt: skip
