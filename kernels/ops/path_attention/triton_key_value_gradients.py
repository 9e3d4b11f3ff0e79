"""Gradients of keys and values in the backward (triton_backward.py explains the scales)."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import (
    LN2,
    at_scales,
    load_block,
    minus_turned,
    store_block,
    token_scalars,
    unit_of,
)
from kernels.triton_common.masked_tiles import load_head_rows, load_head_scalars, store_head_rows


@triton.jit
def _values_inside(
    logits, grad, lse, own, kv, row, first, end, HEADS, GROUP, VALUES, v_column, dvalues,
    C: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Add to dv_j of the rows of block `own`: Σ_i P_ij·do_i over the queries of the same block.

    in      logits [M, HEADS, C, C], grad [T, HEADS, VALUES], lse [T, HEADS]; dvalues, the sum so far
    layout  own: the block's number; kv: the head of keys; row, v_column: what the program has of the block and of the
            values; first, end: the block's first token and its sequence's end
    """
    for at in range(0, GROUP * C, BC):
        head, query = kv * GROUP + at // C, at % C + tl.arange(0, BC)
        lse_i = load_head_scalars(lse, first + query, end, head, HEADS)
        # P_ij = e^(a_ij − lse_i),   dv_j = Σ_i P_ij·do_i
        p = tl.exp(load_block(logits + (own * HEADS + head) * C * C, query, row, C) - lse_i[:, None])
        dout = load_head_rows(grad, first + query, end, head, HEADS, v_column, VALUES)
        dvalues += tl.dot(tl.trans(p).to(dout.dtype), dout, input_precision="ieee")
    return dvalues


@triton.jit
def _key_value_gradients(
    query, v, grad, lse, delta, level, sums, copies, turns, logits, far_dkey, far_dv, far_received,
    dcopies, dkey, dv, received, table, cu, span, TOKENS, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr, G: tl.constexpr,
    SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values from the queries of all later units that they reach; near: of their own, too.

    in      query, v, grad, delta, level, sums, copies as in `_query_gradients`, lse [T, HEADS],
            turns [M, KV_HEADS, K, K]; near: logits [M, HEADS, C, C], and far_dkey, far_dv, far_received, what the far
            scale gave
    out     dkey [M, KV_HEADS, C, K] at the end of the key's unit, dv [T, KV_HEADS, VALUES], far
            [·, KV_HEADS, C, V], received [M, HEADS, C] = Σ_i dS_ij over later units; dcopies like copies
    layout  table, cu; span: its number; G ≥ GROUP
    """
    pid, kv, KV_HEADS = tl.program_id(0), tl.program_id(1), HEADS // GROUP
    sequence, begin, end, own, number, start, stop = unit_of(table, cu, pid // SPLIT, span, C, UNITS, NEAR)
    # all blocks; of the span's stretches those that another follows
    if (sequence >= 0) & (NEAR | ((number >= start) & (number < start + UNITS) & (number + 1 < stop))):
        row = pid % SPLIT * (C // SPLIT) + tl.arange(0, C // SPLIT)
        line = ((number - start) * C).to(tl.int32) + row
        k_column, v_column, member = tl.arange(0, K), tl.arange(0, V), tl.arange(0, G)
        first = begin + number * C
        left = (end - first).to(tl.int32)
        values = load_head_rows(v + first * KV_HEADS * VALUES, row, left, kv, KV_HEADS, v_column, VALUES)
        dvalues, total = tl.zeros((C // SPLIT, V), tl.float32), tl.zeros((C // SPLIT, K), tl.float32)
        ds_sum = tl.zeros((C // SPLIT, G), tl.float32)
        if NEAR:
            dvalues = _values_inside(
                logits, grad, lse, own, kv, row, first, end, HEADS, GROUP, VALUES, v_column, dvalues, C, BC
            )  # fmt: skip
        if far_dkey is not None:
            place = (begin + start * C) // (UNITS * C)
            if begin + (start + UNITS) * C < end:
                # what later stretches gave
                far = (place * KV_HEADS + kv) * UNITS * C
                total += load_block(far_dkey + far * K, line, k_column, K)
                dvalues += load_block(far_dv + far * V, line, v_column, V)
                heads = (place * HEADS + kv * GROUP + member)[None] * UNITS * C
                ds_sum += tl.load(
                    far_received + heads + line[:, None], mask=(member < GROUP)[None], other=0.0
                )
        for back in range(1, stop - number):
            later = stop - back
            unit = own + later - number
            at = (unit * KV_HEADS + kv) * UNITS * C * K
            if dcopies is not None:
                store_block(dcopies + at, total, line, k_column, K)
                # back through the unit: dk̃ ← dk̃ − dk̃·Dᵀ
                total = minus_turned(total, turns + (unit * KV_HEADS + kv) * K * K, K, True)
            # k̃_j at the start of this unit, where its queries were scored with it
            keys = load_block(copies + at, line, k_column, K)
            token = begin + later * C
            there = (end - token).to(tl.int32)
            for step in range(0, GROUP * C, BC):
                head, column = kv * GROUP + step // C, step % C + tl.arange(0, BC)
                queries = tl.load(
                    query + (unit * HEADS + head) * C * K + column[:, None] * K + k_column[None],
                    mask=column[:, None] < there, other=0.0,
                )  # fmt: skip
                dout = load_head_rows(
                    grad + token * HEADS * VALUES, column, there, head, HEADS, v_column, VALUES
                ).to(v.dtype.element_ty)
                place = tl.cast(head, tl.int64) * TOKENS + token
                # P_ij = e^(a_ij − lse_i)
                score = tl.dot(keys, tl.trans(queries), input_precision="ieee")
                score -= token_scalars(level, place, column, there)[None]
                if sums is not None:
                    score += tl.load(sums + (unit * HEADS + head) * UNITS * C + line)[:, None]
                p = tl.exp2(score)
                # dv_j = Σ_i P_ij·do_i
                dvalues += tl.dot(p.to(dout.dtype), dout, input_precision="ieee")
                # dS_ij = P_ij·(do_i·v_j − δ_i),   dk̃_j = Σ_i dS_ij·q̃_i
                ds = tl.dot(values, tl.trans(dout), input_precision="ieee")
                p *= ds - token_scalars(delta, place, column, there)[None]
                total += tl.dot(p.to(queries.dtype), queries, input_precision="ieee")
                if sums is not None:
                    ds_sum += tl.where(member[None] == step // C, tl.sum(p, 1)[:, None], 0.0)
        at = (own * KV_HEADS + kv) * C
        if NEAR:
            store_block(dkey + at * K, total * LN2, row, k_column, K)
            store_head_rows(
                dv + first * KV_HEADS * VALUES, dvalues, row, left, kv, KV_HEADS, v_column, VALUES
            )
        else:
            store_block(dkey + at * K, total, row, k_column, K)
            store_block(dv + at * V, dvalues, row, v_column, V)
        heads = (own * HEADS + kv * GROUP + member)[None] * C
        tl.store(received + heads + row[:, None], ds_sum, mask=(member < GROUP)[None])


near_key_value_gradients, far_key_value_gradients = at_scales(
    _key_value_gradients,
    near=((1, 64, 4, 1), (1, 64, 8, 2), (1, 64, 8, 1), (2, 64, 4, 2), (2, 32, 4, 2), (2, 32, 4, 1)),
    far=((4, 64, 8, 2), (8, 64, 4, 2), (8, 64, 4, 3), (8, 32, 4, 1)),
)
