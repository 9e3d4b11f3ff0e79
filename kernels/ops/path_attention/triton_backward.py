"""The gradient of triton_forward.py, in memory linear in T.

A path can lose information (β = 1 is a projection), so that neither queries nor keys at one block follow from those
at the next. The keys of one span of SPAN tokens at a time are therefore carried through all later blocks, their
copies kept, one a block; then, all blocks at once,

    carry       the copies of the span's keys, and of their sums of gates, at the start of every later block
    query_side  queries of a later block attend to the copies there: dq there, and the sums over keys of dS
    key_side    a key block goes back from the last block: d of its copy after every block (stored as well), dk and dv
    turn_side   dD = −Σ over the copies before a block ⊗ d of the copies after it

    P_ij = e^(a_ij − lse_i),   δ_i = do_i·o_i,   dS_ij = P_ij·(do_i·v_j − δ_i)
    dv_j = Σ_i P_ij·do_i,   dq̃_i = Σ_j dS_ij·k̃_j,   dk̃_j = Σ_i dS_ij·q̃_i

dq and dD grow from span to span, read from one slot of two and written to the other, so that a kernel that runs
twice, to be timed, changes nothing. Scores are recomputed from the log-sum-exps; delta = do·o.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import (
    block_of_span,
    load_block,
    minus_turned,
    store_block,
    tokens_fp32,
)
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_rows, load_head_scalars, store_head_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def outer_delta(out, grad, delta, table, cu, HEADS, VALUES, C: tl.constexpr, V: tl.constexpr):
    """δ_i = do_i·o_i of every token and head: out, grad [T, HEADS, VALUES] -> delta [T, HEADS]."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token, v_column = first + tl.arange(0, C), tl.arange(0, V)
        # δ_i = do_i·o_i
        product = tokens_fp32(out, token, end, head, HEADS, v_column, VALUES)
        product *= tokens_fp32(grad, token, end, head, HEADS, v_column, VALUES)
        tl.store(delta + token * HEADS + head, tl.sum(product, 1), mask=token < end)


@triton.jit
def carry(
    key, turns, copies, firsts, span, HEADS,
    C: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Carry the span's keys to the start of every later block.

    in   key [M, HEADS, C, K], turns [M, HEADS, K, K]; HEADS: KV heads
    out  copies [M, HEADS, BLOCKS·C, K]
    """
    _, place, part, own, end = block_of_span(firsts, span, SPLIT, BLOCKS)
    head, k_column = tl.program_id(1), tl.arange(0, K)
    row = part * (C // SPLIT) + tl.arange(0, C // SPLIT)
    if own < end:
        k_turned = load_block(key + (own * HEADS + head) * C * K, row, k_column, K).to(tl.float32)
        for block in range(own + 1, end):
            # k̃_j at the start of the block
            store_block(
                copies + (block * HEADS + head) * BLOCKS * C * K, k_turned, place * C + row, k_column, K
            )
            if turns is not None:
                # through the block: k̃ ← k̃ − k̃·D
                k_turned = minus_turned(k_turned, turns + (block * HEADS + head) * K * K, K, False)


@triton.jit
def carry_gates(before, after, sums, firsts, span, HEADS, C: tl.constexpr, BLOCKS: tl.constexpr):
    """Sum gates from the span's tokens to the start of every later block.

    in   before, after [M, HEADS, C]
    out  sums [M, HEADS, BLOCKS·C]
    """
    _, place, _, own, end = block_of_span(firsts, span, 1, BLOCKS)
    head, row = tl.program_id(1), tl.arange(0, C)
    if own < end:
        gate_sum = tl.load(after + (own * HEADS + head) * C + row)
        for block in range(own + 1, end):
            # Σ_{s=j+1..last} g_s of the blocks before
            tl.store(sums + ((block * HEADS + head) * BLOCKS + place) * C + row, gate_sum)
            gate_sum += tl.load(before + (block * HEADS + head) * C + C - 1)


@triton.jit
def _query_side(
    query, v, grad, lse, delta, before, sums, copies, dquery, across, table, cu, span, SLOT, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries of all blocks after the span's first one, from the span's keys.

    in      query, v, lse, before as in the forward; grad = do, delta; copies, sums of `carry`, `carry_gates`
    out     dquery [2, M, HEADS, C, K], across [2, M, HEADS, C] = Σ_j dS_ij; read from one slot, written to the other
    layout  table, cu; span: its number; SLOT: the heads of all blocks, M·HEADS, from one slot to the next
    """
    block, part = (tl.program_id(0) // SPLIT).to(tl.int64), tl.program_id(0) % SPLIT
    head, KV_HEADS = tl.program_id(1), HEADS // GROUP
    kv, own = head // GROUP, block * HEADS + head
    sequence, begin, end, first = chunk_bounds(table, cu, block, C)
    ahead = tl.minimum(tl.load(table + block * 2 + 1) - span * BLOCKS, BLOCKS)
    if (sequence >= 0) & (ahead > 0):
        row = part * (C // SPLIT) + tl.arange(0, C // SPLIT)
        k_column, v_column = tl.arange(0, K), tl.arange(0, V)
        queries = load_block(query + own * C * K, row, k_column, K)
        dout = load_head_rows(grad, first + row, end, head, HEADS, v_column, VALUES).to(v.dtype.element_ty)
        lse_i = load_head_scalars(lse, first + row, end, head, HEADS)
        delta_i = load_head_scalars(delta, first + row, end, head, HEADS)
        total, ds_sum = tl.zeros((C // SPLIT, K), tl.float32), tl.zeros((C // SPLIT,), tl.float32)
        if span > 0:
            old = own + ((span + 1) % 2) * SLOT
            total += load_block(dquery + old * C * K, row, k_column, K)
            ds_sum += tl.load(across + old * C + row)
        if before is not None:
            # P_ij = e^(q̃_i·k̃_j + Σ_j + Σ_i − lse_i), Σ_i and Σ_j: gates of i's block up to i, of the blocks before
            lse_i -= tl.load(before + own * C + row)
        for start in range(0, ahead * C, BC):
            column = start + tl.arange(0, BC)
            keys = load_block(copies + (block * KV_HEADS + kv) * BLOCKS * C * K, column, k_column, K)
            token = begin + span * BLOCKS * C + column
            values = load_head_rows(v, token, end, kv, KV_HEADS, v_column, VALUES)
            # a_ij − lse_i
            score = tl.dot(queries, tl.trans(keys), input_precision="ieee") - lse_i[:, None]
            if sums is not None:
                score += tl.load(sums + own * BLOCKS * C + column)[None]
            # dS_ij = P_ij·(do_i·v_j − δ_i)
            ds = tl.dot(dout, tl.trans(values), input_precision="ieee") - delta_i[:, None]
            ds *= tl.exp(score)
            # dq̃_i = Σ_j dS_ij·k̃_j
            total += tl.dot(ds.to(keys.dtype), keys, input_precision="ieee")
            ds_sum += tl.sum(ds, 1)
        new = own + (span % 2) * SLOT
        store_block(dquery + new * C * K, total, row, k_column, K)
        tl.store(across + new * C + row, ds_sum)


@triton.jit
def _values_inside(
    logits, grad, lse, own, kv, row, first, end, HEADS, GROUP, VALUES, v_column, dvalues,
    C: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Add to dv_j of the rows of block `own`: Σ_i P_ij·do_i over the queries of the same block."""
    for at in range(0, GROUP * C, BC):
        head, query = kv * GROUP + at // C, at % C + tl.arange(0, BC)
        lse_i = load_head_scalars(lse, first + query, end, head, HEADS)
        # P_ij = e^(a_ij − lse_i),   dv_j = Σ_i P_ij·do_i
        p = tl.exp(load_block(logits + (own * HEADS + head) * C * C, query, row, C) - lse_i[:, None])
        dout = load_head_rows(grad, first + query, end, head, HEADS, v_column, VALUES)
        dvalues += tl.dot(tl.trans(p).to(dout.dtype), dout, input_precision="ieee")
    return dvalues


@triton.jit
def _key_side(
    query, v, grad, lse, delta, before, sums, copies, turns, logits, dcopies, dkey, dv, received, firsts, cu, span,
    HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """Gradients of the span's keys and values, from the queries of their own and of all later blocks.

    in      query, v, turns, logits, lse, before as in the forward; grad = do, delta; copies, sums
    out     dkey [M, KV_HEADS, C, K] at the end of the key's block, dv [T, KV_HEADS, VALUES],
            received [M, HEADS, C] = Σ_i dS_ij over later blocks; dcopies like copies
    layout  firsts, cu; span: its number; G ≥ GROUP
    """
    sequence, place, part, own, stop = block_of_span(firsts, span, SPLIT, BLOCKS)
    kv, KV_HEADS = tl.program_id(1), HEADS // GROUP
    if own < stop:
        begin, end = tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64)
        first = begin + (span * BLOCKS + place) * C
        row = part * (C // SPLIT) + tl.arange(0, C // SPLIT)
        k_column, v_column = tl.arange(0, K), tl.arange(0, V)
        member = tl.arange(0, G)
        values = load_head_rows(v, first + row, end, kv, KV_HEADS, v_column, VALUES)
        dvalues = _values_inside(
            logits, grad, lse, own, kv, row, first, end, HEADS, GROUP, VALUES, v_column,
            tl.zeros((C // SPLIT, V), tl.float32), C, BC,
        )  # fmt: skip
        total, ds_sum = tl.zeros((C // SPLIT, K), tl.float32), tl.zeros((C // SPLIT, G), tl.float32)
        for back in range(1, stop - own):
            block = stop.to(tl.int64) - back
            at = (block * KV_HEADS + kv) * BLOCKS * C * K
            if dcopies is not None:
                store_block(dcopies + at, total, place * C + row, k_column, K)
                # back through the block: dk̃ ← dk̃ − dk̃·Dᵀ
                total = minus_turned(total, turns + (block * KV_HEADS + kv) * K * K, K, True)
            # k̃_j at the start of this block, where its queries were scored with it
            keys = load_block(copies + at, place * C + row, k_column, K)
            later = first + (block - own) * C
            for step in range(0, GROUP * C, BC):
                head, column = kv * GROUP + step // C, step % C + tl.arange(0, BC)
                there = block * HEADS + head
                queries = load_block(query + there * C * K, column, k_column, K)
                dout = load_head_rows(grad, later + column, end, head, HEADS, v_column, VALUES).to(
                    v.dtype.element_ty
                )
                lse_i = load_head_scalars(lse, later + column, end, head, HEADS)
                delta_i = load_head_scalars(delta, later + column, end, head, HEADS)
                # P_ij = e^(a_ij − lse_i)
                score = tl.dot(keys, tl.trans(queries), input_precision="ieee") - lse_i[None]
                if before is not None:
                    score += tl.load(before + there * C + column)[None]
                    score += tl.load(sums + there * BLOCKS * C + place * C + row)[:, None]
                p = tl.exp(score)
                # dv_j = Σ_i P_ij·do_i
                dvalues += tl.dot(p.to(dout.dtype), dout, input_precision="ieee")
                # dS_ij = P_ij·(do_i·v_j − δ_i),   dk̃_j = Σ_i dS_ij·q̃_i
                p *= tl.dot(values, tl.trans(dout), input_precision="ieee") - delta_i[None]
                total += tl.dot(p.to(queries.dtype), queries, input_precision="ieee")
                ds_sum += tl.where(member[None] == step // C, tl.sum(p, 1)[:, None], 0.0)
        store_block(dkey + (own * KV_HEADS + kv) * C * K, total, row, k_column, K)
        store_head_rows(dv, dvalues, first + row, end, kv, KV_HEADS, v_column, VALUES)
        heads = (own * HEADS + kv * GROUP + member)[None] * C
        tl.store(received + heads + row[:, None], ds_sum, mask=(member < GROUP)[None])


@triton.jit
def _turn_side(
    copies, dcopies, dturns, table, span, SLOT, HEADS,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BLOCKS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the turns of all blocks after the span's first one; a tile [BK, BK] a program.

    in   copies and dcopies [M, HEADS, BLOCKS·C, K]; HEADS: KV heads
    out  dturns [2, M, HEADS, K, K]; read from one slot, written to the other
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = block * HEADS + head
    ahead = tl.minimum(tl.load(table + block * 2 + 1) - span * BLOCKS, BLOCKS)
    if ahead > 0:
        above = (tl.program_id(2) // (K // BK)) * BK + tl.arange(0, BK)
        column = (tl.program_id(2) % (K // BK)) * BK + tl.arange(0, BK)
        total = tl.zeros((BK, BK), tl.float32)
        if span > 0:
            total += load_block(dturns + (own + ((span + 1) % 2) * SLOT) * K * K, above, column, K)
        for start in range(0, ahead * C, BC):
            row = start + tl.arange(0, BC)
            # dD = −Σ_j k̃_j(before the block) ⊗ dk̃_j(after it)
            keys = load_block(copies + own * BLOCKS * C * K, row, above, K)
            after = load_block(dcopies + own * BLOCKS * C * K, row, column, K)
            total -= tl.dot(tl.trans(keys), after, input_precision="ieee")
        store_block(dturns + (own + (span % 2) * SLOT) * K * K, total, above, column, K)


def _configs(*found: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
        for split, columns, warps, stages in found
    ]


query_side = Tuned(
    _query_side,
    _configs((1, 64, 8, 2), (1, 64, 4, 2), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2), (2, 32, 4, 1)),
    ["C", "K", "V", "GROUP"],
)
key_side = Tuned(
    _key_side,
    _configs((1, 64, 8, 2), (1, 64, 8, 1), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2), (2, 32, 4, 1)),
    ["C", "K", "V", "GROUP"],
)
turn_side = Tuned(
    _turn_side,
    [
        triton.Config({"BC": rows}, num_warps=4, num_stages=stages)
        for rows, stages in ((64, 3), (32, 4), (64, 2), (32, 2))
    ],
    ["C", "K", "BK"],
)
