"""Kernels of PaTH attention's gradient, in memory linear in T: at two scales, then through the prepared blocks.

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

The far scale goes first; the near one takes its gradients up where `products_back` has brought them to blocks. Far dq
and dD grow from span to span, read from one slot of two and written to the other, so that a kernel that runs twice,
to be timed, changes nothing. Scores are recomputed from the log-sum-exps, as powers of two: queries and sums of gates
carry a factor log₂ e, and with them the gradients of keys and turns until the near scale ends.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_forward import (
    LN2,
    LOG2E,
    at_scales,
    last_slot,
    load_block,
    minus_turned,
    store_block,
    token_scalars,
    tokens_fp32,
    unit_of,
)
from kernels.triton_common import chunk_bounds
from kernels.triton_common.tiles import load_head_rows, load_head_scalars, store_head_rows

# Preparation of queries for both scales: δ, scores' levels, queries at their stretch's start, gates.
#
# Buffers of stretches are in the order of their first tokens, [⌈T/STRETCH⌉, heads, ...], with STRETCH = UNITS·C.


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


# Gradients of queries, at both scales.


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


# Gradients of keys and values, at both scales.


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
        # from the last unit to the first: the gradient of a copy includes those of all later copies
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


# Back through the prepared blocks, block by block: the formulas of `prepare_backward` in torch_form.py.
#
# inner_back    a block and query head      dS inside the block, d of passed, dq, and of every token the sums of dS
#                                           over its keys less those over its queries
# gate_back     a sequence and query head   dg_s = Σ of those over the tokens from s on: what stays is Σ_{i ≥ s > j}
#               dS_ij
# group_back    a block, KV head and tile   the query heads' sums: dU, and the parts of dk and dw that no C × C system
#                                           stands between
# compact_back  a block and KV head         back through the triangular system: dk, dw, dβ


@triton.jit
def _slopes(
    v, grad, lse, delta, logits, token, end, head, kv, own, TOKENS, HEADS, GROUP, VALUES,
    C: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS_ij = P_ij·(do_i·v_j − δ_i) [C, C] in fp32 inside a block, of one query head.

    in         v [T, KV_HEADS, VALUES], grad = do [T, HEADS, VALUES], lse [T, HEADS], delta [HEADS, T],
               logits [M, HEADS, C, C]
    place      token [C] and end of the sequence; head, its KV head kv; own, the place of block and head in logits
    sizes      TOKENS: T; HEADS, GROUP; VALUES
    constants  C tokens of a block; V ≥ VALUES; BK columns of a tile; PRECISION of products
    """
    row = tl.arange(0, C)
    ds = tl.zeros((C, C), tl.float32)
    for start in range(0, V, BK):
        column = start + tl.arange(0, BK)
        dout = tokens_fp32(grad, token, end, head, HEADS, column, VALUES)
        values = tokens_fp32(v, token, end, kv, HEADS // GROUP, column, VALUES)
        # dS_ij = P_ij·(do_i·v_j − δ_i)
        ds += tl.dot(dout, tl.trans(values), input_precision=PRECISION)
    ds -= load_head_scalars(delta + tl.cast(head, tl.int64) * TOKENS, token, end, 0, 1)[:, None]
    lse_i = load_head_scalars(lse, token, end, head, HEADS)
    return ds * tl.exp(load_block(logits + own * C * C, row, row, C) - lse_i[:, None])


@triton.jit
def inner_back(
    k, v, w, grad, lse, delta, logits, skipped, u, dquery, across, received, dlogits, dpassed, dq, net, table, cu,
    scale, TOKENS, HEADS, GROUP, WIDTH, VALUES,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through `inner`: dq and, of every token, the net sums of dS that its gate gets.

    in      inputs: k, v [T, KV_HEADS, ·], w; grad = do, lse [T, HEADS], delta [HEADS, T]
            of the block: logits, skipped, u
            from other blocks: dquery [M, HEADS, C, K], across, received [M, HEADS, C]
    out     dlogits, dpassed [M, HEADS, C, C], dq [T, HEADS, WIDTH], net [M, HEADS, C] or None without gates
    layout  table, cu; TOKENS: T
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, kv, KV_HEADS = tl.arange(0, C), head // GROUP, HEADS // GROUP
        token, own, own_kv = first + row, block * HEADS + head, block * KV_HEADS + kv
        ds = _slopes(
            v, grad, lse, delta, logits, token, end, head, kv, own, TOKENS, HEADS, GROUP, VALUES, C, V, BV, PRECISION
        )  # fmt: skip
        store_block(dlogits + own * C * C, ds, row, row, C)
        if net is not None:
            # net_t = Σ_j dS_tj − Σ_i dS_it, of this block and of the others
            sums = tl.load(across + own * C + row)
            sums += tl.sum(ds, 1) - tl.sum(ds, 0) - tl.load(received + own * C + row)
            tl.store(net + own * C + row, sums)
        if w is not None:
            # dpassed = −tril(dS·skippedᵀ + dq̃·Uᵀ)
            dpassed_tile = tl.dot(
                ds, tl.trans(load_block(skipped + own_kv * C * C, row, row, C)), input_precision=PRECISION
            )
            for start in range(0, K, BK):
                column = start + tl.arange(0, BK)
                dq_turned = load_block(dquery + own * C * K, row, column, K)
                u_tile = load_block(u + own_kv * C * K, row, column, K)
                dpassed_tile += tl.dot(dq_turned, tl.trans(u_tile), input_precision=PRECISION)
            dpassed_tile = tl.where(row[None] <= row[:, None], -dpassed_tile, 0.0)
            store_block(dpassed + own * C * C, dpassed_tile, row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = tokens_fp32(k, token, end, kv, KV_HEADS, column, WIDTH)
            # dq = s·(dq̃ + dS·K + dpassed·W)
            total = load_block(dquery + own * C * K, row, column, K)
            total += tl.dot(ds, keys, input_precision=PRECISION)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
                total += tl.dot(dpassed_tile, w_tile, input_precision=PRECISION)
            store_head_rows(dq, total * scale, token, end, head, HEADS, column, WIDTH)


@triton.jit
def gate_back(net, dg, firsts, cu, HEADS, C: tl.constexpr):
    """dg_s = Σ_{t ≥ s} net_t from the end of the sequence, block by block: net [M, HEADS, C] -> dg [T, HEADS]."""
    sequence, head, row = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    begin, end = tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64)
    first, stop = tl.load(firsts + sequence).to(tl.int64), tl.load(firsts + sequence + 1).to(tl.int64)
    later = 0.0
    for back in range(1, stop - first + 1):
        block = stop - back
        line = tl.load(net + (block * HEADS + head) * C + row)
        token = begin + (block - first) * C + row
        # dg_s = Σ_{t ≥ s} net_t
        sums = tl.cumsum(line, 0, reverse=True) + later
        tl.store(dg + token * HEADS + head, sums.to(dg.dtype.element_ty), mask=token < end)
        later += tl.sum(line, 0)


@triton.jit
def group_back(
    q, w, u, skipped, passed, dlogits, dpassed, dquery, dkey, dturns, du, dk, dw, table, cu,
    scale, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum over the query heads of a group, a tile of BK columns a program.

    in   q [T, HEADS, WIDTH], w; u, skipped, passed of the block; dlogits, dpassed of `inner_back`;
         from other blocks: dquery [M, HEADS, C, K], dkey [M, KV_HEADS, C, K], dturns [M, KV_HEADS, K, K]
    out  du, dk, dw [M, KV_HEADS, C, K] in fp32; without w only dk
    """
    block, kv, KV_HEADS = tl.program_id(0).to(tl.int64), tl.program_id(1), HEADS // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own_kv = tl.arange(0, C), block * KV_HEADS + kv
        token, column = first + row, tl.program_id(2) * BK + tl.arange(0, BK)
        dk_tile = load_block(dkey + own_kv * C * K, row, column, K).to(tl.float32)
        if w is not None:
            skipped_tile = load_block(skipped + own_kv * C * C, row, row, C)
            # dw = −skipped·dk̃ + U·dD + Σ_h dpassedᵀ·q,   dU = W·dDᵀ − Σ_h passedᵀ·dq̃
            dw_tile = -tl.dot(skipped_tile, dk_tile, input_precision=PRECISION)
            du_tile = tl.zeros((C, BK), tl.float32)
            for start in range(0, K, BK):
                other = start + tl.arange(0, BK)
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, other, WIDTH)
                u_tile = load_block(u + own_kv * C * K, row, other, K)
                across = load_block(dturns + own_kv * K * K, column, other, K)
                du_tile += tl.dot(w_tile, tl.trans(across), input_precision=PRECISION)
                along = load_block(dturns + own_kv * K * K, other, column, K)
                dw_tile += tl.dot(u_tile, along, input_precision=PRECISION)
        for head in range(kv * GROUP, (kv + 1) * GROUP):
            own = block * HEADS + head
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            ds = load_block(dlogits + own * C * C, row, row, C)
            # dk = dk̃ + Σ_h dSᵀ·q
            dk_tile += tl.dot(tl.trans(ds), queries, input_precision=PRECISION)
            if w is not None:
                dpassed_tile = load_block(dpassed + own * C * C, row, row, C)
                dw_tile += tl.dot(tl.trans(dpassed_tile), queries, input_precision=PRECISION)
                dq_turned = load_block(dquery + own * C * K, row, column, K)
                passed_tile = load_block(passed + own * C * C, row, row, C)
                du_tile -= tl.dot(tl.trans(passed_tile), dq_turned, input_precision=PRECISION)
        store_block(dk + own_kv * C * K, dk_tile, row, column, K)
        if w is not None:
            store_block(du + own_kv * C * K, du_tile, row, column, K)
            store_block(dw + own_kv * C * K, dw_tile, row, column, K)


@triton.jit
def _row_products(
    x, y, token, end, head, HEADS, WIDTH, C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The product X·Yᵀ [C, C] of a block's rows of one head of x and y [T, HEADS, WIDTH], in fp32."""
    met = tl.zeros((C, C), tl.float32)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        left = tokens_fp32(x, token, end, head, HEADS, column, WIDTH)
        right = tokens_fp32(y, token, end, head, HEADS, column, WIDTH)
        met += tl.dot(left, tl.trans(right), input_precision=PRECISION)
    return met


@triton.jit
def _system_back(
    k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, token, end, kv, block, own_kv, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through the triangular system Y: d(W·Kᵀ), d(W·Wᵀ) plus its transpose, and their part of dβ.

    in         inputs: k, w [T, KV_HEADS, WIDTH], beta [T, KV_HEADS]
               of the forward: inverse, skipped [M, KV_HEADS, C, C], u [M, KV_HEADS, C, K], passed [M, HEADS, C, C]
               gradients: dlogits [M, HEADS, C, C], dkey, du [M, KV_HEADS, C, K]
    out        d(W·Kᵀ), d(W·Wᵀ) + d(W·Wᵀ)ᵀ [C, C] and the part of dβ [C], in fp32
    place      token [C], the block's, end, that of its sequence; kv, block, own_kv = block·KV_HEADS + kv
    sizes      HEADS, GROUP: query heads, and those of a KV head; WIDTH: of keys
    constants  C tokens a block, K: WIDTH padded, BK columns a tile, PRECISION of products
    """
    row, KV_HEADS = tl.arange(0, C), HEADS // GROUP
    earlier = row[None] < row[:, None]
    dskipped, met_rows = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    for head in range(kv * GROUP, (kv + 1) * GROUP):
        own = block * HEADS + head
        passed_tile = load_block(passed + own * C * C, row, row, C)
        ds = load_block(dlogits + own * C * C, row, row, C)
        # d skipped = −Σ_h passedᵀ·dS − W·dk̃ᵀ
        dskipped -= tl.dot(tl.trans(passed_tile), ds, input_precision=PRECISION)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
        dk_tile = load_block(dkey + own_kv * C * K, row, column, K).to(tl.float32)
        u_tile = load_block(u + own_kv * C * K, row, column, K)
        du_tile = load_block(du + own_kv * C * K, row, column, K)
        dskipped -= tl.dot(w_tile, tl.trans(dk_tile), input_precision=PRECISION)
        # dU·Uᵀ
        met_rows += tl.dot(du_tile, tl.trans(u_tile), input_precision=PRECISION)
    back = tl.trans(load_block(inverse + own_kv * C * C, row, row, C))
    # through Y: d(Diag(β)·tril(W·Kᵀ)) = Yᵀ·d skipped
    dmet = tl.dot(back, dskipped, input_precision=PRECISION)
    # and d(Diag(β)·tril(W·Wᵀ)) = −tril((Yᵀ·d skipped)·skippedᵀ + Yᵀ·dU·Uᵀ, −1)
    dgram = tl.dot(
        dmet, tl.trans(load_block(skipped + own_kv * C * C, row, row, C)), input_precision=PRECISION
    )
    dgram += tl.dot(back, met_rows, input_precision=PRECISION)
    dmet, dgram = tl.where(earlier, dmet, 0.0), tl.where(earlier, -dgram, 0.0)
    # dβ = Σ over columns of both, times W·Kᵀ and W·Wᵀ
    beta_rows = load_head_scalars(beta, token, end, kv, KV_HEADS)
    # A matrix [C, C] fills a quarter of the registers or half of them: these two are made where they are used.
    dbeta_rows = tl.sum(dmet * _row_products(w, k, token, end, kv, KV_HEADS, WIDTH, C, K, BK, PRECISION), 1)
    dbeta_rows += tl.sum(dgram * _row_products(w, w, token, end, kv, KV_HEADS, WIDTH, C, K, BK, PRECISION), 1)
    dgram *= beta_rows[:, None]
    return dmet * beta_rows[:, None], dgram + tl.trans(dgram), dbeta_rows


@triton.jit
def compact_back(
    k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, dk_part, dw_part, dk, dw, dbeta, table, cu,
    HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through `compact`: dk, dw and dβ of one block and KV head.

    in   k, w [T, KV_HEADS, WIDTH], beta; inverse, skipped, u, passed of the block; dlogits; dkey, du, dk_part,
         dw_part [M, KV_HEADS, C, K] of `group_back`
    out  dk, dw [T, KV_HEADS, WIDTH], dbeta [T, KV_HEADS]; without w only dk
    """
    block, kv, KV_HEADS = tl.program_id(0).to(tl.int64), tl.program_id(1), HEADS // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own_kv = tl.arange(0, C), block * KV_HEADS + kv
        token = first + row
        if w is not None:
            dmet, dgram, dbeta_rows = _system_back(
                k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, token, end, kv, block, own_kv,
                HEADS, GROUP, WIDTH, C, K, BK, PRECISION,
            )  # fmt: skip
            back = tl.trans(load_block(inverse + own_kv * C * C, row, row, C))
            beta_rows = load_head_scalars(beta, token, end, kv, KV_HEADS)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            dk_tile = load_block(dk_part + own_kv * C * K, row, column, K)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
                keys = tokens_fp32(k, token, end, kv, KV_HEADS, column, WIDTH)
                # d(Diag(β)·W) = Yᵀ·dU, of which dβ gets its product with W
                right = tl.dot(
                    back, load_block(du + own_kv * C * K, row, column, K), input_precision=PRECISION
                )
                dbeta_rows += tl.sum(right * w_tile, 1)
                # dw = dw_part + β·Yᵀ·dU + d(W·Kᵀ)·K + (d(W·Wᵀ) + its transpose)·W
                dw_tile = load_block(dw_part + own_kv * C * K, row, column, K) + beta_rows[:, None] * right
                dw_tile += tl.dot(dmet, keys, input_precision=PRECISION)
                dw_tile += tl.dot(dgram, w_tile, input_precision=PRECISION)
                # dk = dk_part + d(W·Kᵀ)ᵀ·W
                dk_tile += tl.dot(tl.trans(dmet), w_tile, input_precision=PRECISION)
                store_head_rows(dw, dw_tile, token, end, kv, KV_HEADS, column, WIDTH)
            store_head_rows(dk, dk_tile, token, end, kv, KV_HEADS, column, WIDTH)
        if w is not None:
            tl.store(dbeta + token * KV_HEADS + kv, dbeta_rows.to(dbeta.dtype.element_ty), mask=token < end)
