"""The gradient of triton_forward.py, in memory linear in T.

A path can lose information (β = 1 is a projection), so that neither queries nor keys at one place follow from those
at the next. Keys are therefore carried and their copies kept, at two scales:

    near   within a stretch of STRETCH tokens: the copies of its keys at the start of every later block of it
    far    from stretch to stretch: keys at the end of their own one, queries at the start of theirs, and copies at the
           start of every later stretch, of the keys of one span of SPAN tokens at a time

At each scale the same kernels run, on blocks or on stretches as units (`unit_of`), all units at once:

    carry                the copies of keys, and of their sums of gates, at the start of every later unit
    query_gradients      queries attend to the copies at the start of their unit: dq there, the sums over keys of dS
    key_value_gradients  keys go back from the last unit: d of their copy after every unit (stored as well), dk, dv
    turn_gradients       dD = −Σ over the copies before a unit ⊗ d of the copies after it

    P_ij = e^(a_ij − lse_i),   δ_i = do_i·o_i,   dS_ij = P_ij·(do_i·v_j − δ_i)
    dv_j = Σ_i P_ij·do_i,   dq̃_i = Σ_j dS_ij·k̃_j,   dk̃_j = Σ_i dS_ij·q̃_i

The far scale goes first; the near one takes its gradients up where `products_back` has brought them to blocks.
Far dq and dD grow from span to span, read from one slot of two and written to the other, so that a kernel that runs
twice, to be timed, changes nothing. Scores are recomputed from the log-sum-exps, as powers of two: queries and sums of
gates carry a factor log₂ e, and with them the gradients of keys and turns until the near scale ends.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_path_products import last_slot
from kernels.ops.path_attention.triton_tiles import (
    at_scales,
    load_block,
    minus_turned,
    store_block,
    token_scalars,
    unit_of,
)
from kernels.triton_common.masked_tiles import load_head_rows


@triton.jit
def _query_gradients(
    query, v, grad, delta, level, sums, copies, prefix, far_dquery, far_across, dquery, across, table, cu, span, SLOT,
    TOKENS, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr,
    SPANNED: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries of all units from the keys of earlier ones of their span.

    in      query [M, HEADS, C, K], v [T, KV_HEADS, VALUES], grad = do [T, HEADS, VALUES]; delta, level [HEADS, T],
            sums, prefix of `backward_preprocess`, `carry_gates`, `products`; copies of `carry`; near: far_dquery,
            far_across, what the far scale gave
    out     dquery [M, HEADS, C, K], across [M, HEADS, C] = Σ_j dS_ij; far [2, ·, HEADS, ...], read from one slot,
            written to the other
    layout  table, cu; span: its number; SLOT: from one slot to the next; SPANNED: stretches of a span
    """
    pid = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head, KV_HEADS = tl.program_id(1), HEADS // GROUP
    kv = head // GROUP
    sequence, begin, end, own, number, start, _ = unit_of(table, cu, pid // SPLIT, span, C, UNITS, NEAR)
    ahead = tl.minimum(number - start, UNITS)
    if (sequence >= 0) & (NEAR | (ahead > 0)):
        row = pid % SPLIT * (C // SPLIT) + tl.arange(0, C // SPLIT)
        k_column, v_column = tl.arange(0, K), tl.arange(0, V)
        first = begin + number * C
        left = (end - first).to(tl.int32)
        queries = tl.load(
            query + (own * HEADS + head) * C * K + row[:, None] * K + k_column[None],
            mask=row[:, None] < left, other=0.0,
        )  # fmt: skip
        dout = load_head_rows(grad + first * HEADS * VALUES, row, left, head, HEADS, v_column, VALUES).to(
            v.dtype.element_ty
        )
        at = tl.cast(head, tl.int64) * TOKENS + first
        level_i, delta_i = token_scalars(level, at, row, left), token_scalars(delta, at, row, left)
        total, ds_sum = tl.zeros((C // SPLIT, K), tl.float32), tl.zeros((C // SPLIT,), tl.float32)
        if far_dquery is not None:
            place = (begin + start * C) // (UNITS * C) * HEADS + head
            if start > 0:
                # what earlier stretches gave, from the start of the stretch: dq̃ = dq·P_b = dq − dq·E_b
                far = (last_slot(start // UNITS, SPANNED) * SLOT + place) * UNITS * C
                line = ((number - start) * C).to(tl.int32) + row
                total += load_block(far_dquery + far * K, line, k_column, K)
                if prefix is not None:
                    total = minus_turned(total, prefix + (own * KV_HEADS + kv) * K * K, K, False)
                ds_sum += tl.load(far_across + far + line)
        if not NEAR:
            old = (span + 1) % 2 * SLOT + own * HEADS + head
            if span > 0:
                total += load_block(dquery + old * C * K, row, k_column, K)
                ds_sum += tl.load(across + old * C + row)
        keys_at = copies + (own * KV_HEADS + kv) * UNITS * C * K
        values_at = v + (begin + start * C) * KV_HEADS * VALUES
        there = (end - begin - start * C).to(tl.int32)
        for step in range(0, (ahead * C).to(tl.int32), BC):
            column = step + tl.arange(0, BC)
            keys = load_block(keys_at, column, k_column, K)
            values = load_head_rows(values_at, column, there, kv, KV_HEADS, v_column, VALUES)
            # log₂ e·(a_ij − lse_i), the product on top of the rest: one sum less an element
            score = tl.zeros((C // SPLIT, BC), tl.float32) - level_i[:, None]
            if sums is not None:
                score += tl.load(sums + (own * HEADS + head) * UNITS * C + column)[None]
            score = tl.dot(queries, tl.trans(keys), score, input_precision="ieee")
            # dS_ij = P_ij·(do_i·v_j − δ_i)
            ds = tl.dot(dout, tl.trans(values), input_precision="ieee") - delta_i[:, None]
            ds *= tl.exp2(score)
            # dq̃_i = Σ_j dS_ij·k̃_j
            total += tl.dot(ds.to(keys.dtype), keys, input_precision="ieee")
            if sums is not None:
                ds_sum += tl.sum(ds, 1)
        new = own * HEADS + head
        if not NEAR:
            new += span % 2 * SLOT
        store_block(dquery + new * C * K, total, row, k_column, K)
        tl.store(across + new * C + row, ds_sum)


near_query_gradients, far_query_gradients = at_scales(
    _query_gradients,
    near=((1, 64, 4, 2), (1, 64, 8, 2), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2), (2, 32, 4, 1)),
    far=((4, 64, 8, 2), (8, 64, 4, 2), (8, 64, 4, 3), (8, 32, 4, 1)),
)
