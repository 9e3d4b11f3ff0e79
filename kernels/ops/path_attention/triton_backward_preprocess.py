"""Preparation of queries for the backward at both scales: δ, scores' levels, queries at their stretch's start, gates.

Buffers of stretches are in the order of their first tokens, [⌈T/STRETCH⌉, heads, ...], with STRETCH = UNITS·C.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import (
    LOG2E,
    load_block,
    minus_turned,
    store_block,
    tokens_fp32,
    unit_of,
)
from kernels.triton_common.masked_tiles import load_head_scalars


@triton.jit
def backward_preprocess(
    out, grad, lse, query, prefix, before, after,
    delta, level, sums, far_query, far_level, far_before, far_after, table, cu, TOKENS, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Prepare what the kernels of both scales read of a block's queries, and the sums of its gates, of one head.

    in   out, grad = do [T, HEADS, VALUES], lse [T, HEADS]; query, before, after, prefix of the block
    out  delta, level, far_level [HEADS, T]: δ_i = do_i·o_i, and log₂ e·lse_i less the gates from the start of the block
         and of the stretch to i; sums [M, HEADS, UNITS·C] at the starts of later blocks of the stretch;
         far_query [·, HEADS, STRETCH, K], far_before, far_after [·, HEADS, STRETCH]
    """
    sequence, begin, end, own, number, start, stop = unit_of(table, cu, tl.program_id(0), 0, C, UNITS, True)
    head, row, k_column, v_column = tl.program_id(1), tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    if sequence >= 0:
        token = begin + number * C + row
        place = (begin + start * C) // (UNITS * C) * HEADS + head
        line = ((number - start) * C).to(tl.int32) + row
        # δ_i = do_i·o_i
        product = tokens_fp32(out, token, end, head, HEADS, v_column, VALUES)
        product *= tokens_fp32(grad, token, end, head, HEADS, v_column, VALUES)
        at = tl.cast(head, tl.int64) * TOKENS + token
        tl.store(delta + at, tl.sum(product, 1), mask=token < end)
        lowered = load_head_scalars(lse, token, end, head, HEADS) * LOG2E
        earlier = 0.0
        if before is not None:
            here = tl.load(before + (own * HEADS + head) * C + row)
            lowered -= here
            gate_sum = tl.load(after + (own * HEADS + head) * C + row)
            for later in range(1, stop - number):
                there = (own + later) * HEADS + head
                # Σ_{s=j+1..last} g_s of the blocks before
                tl.store(sums + there * UNITS * C + line, gate_sum)
                gate_sum += tl.load(before + there * C + C - 1)
            for block in range(own - number + start, own):
                earlier += tl.load(before + (block * HEADS + head) * C + C - 1)
            if far_before is not None:
                # where two stretches share a place, only one has an earlier one and only one a later one
                tl.store(far_before + place * UNITS * C + line, here + earlier, mask=start + 0 * line > 0)
                follows = begin + (start + UNITS) * C + 0 * line < end
                tl.store(far_after + place * UNITS * C + line, gate_sum, mask=follows)
        tl.store(level + at, lowered, mask=token < end)
        if far_query is not None:
            tl.store(far_level + at, lowered - earlier, mask=token < end)
            if start > 0:
                q_turned = load_block(query + (own * HEADS + head) * C * K, row, k_column, K).to(tl.float32)
                if prefix is not None:
                    # q̃ at the start of the stretch: q̃ − q̃·E_bᵀ
                    at_kv = own * (HEADS // GROUP) + head // GROUP
                    q_turned = minus_turned(q_turned, prefix + at_kv * K * K, K, True)
                store_block(far_query + place * UNITS * C * K, q_turned, line, k_column, K)
