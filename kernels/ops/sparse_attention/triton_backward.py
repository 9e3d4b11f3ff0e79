"""Sparse attention backward: dq by query, as forward; dk and dv by block of keys, from the inverted lists.

p_ts = e^(scale·q_t·k_s − lse_t)          do_t = dy_t ⊙ σ(l_t),   δ_t = do_t·o_t = dy_t·y_t
ds_ts = p_ts·(do_t·v_s − δ_t)             dv_s = Σ_t p_ts·do_t
dq_t = scale·Σ_s ds_ts·k_s                dk_s = scale·Σ_t ds_ts·q_t
dl_t = dy_t ⊙ o_t ⊙ σ(l_t) ⊙ (1 − σ(l_t)) = dy_t ⊙ y_t ⊙ (1 − σ(l_t))

o is not needed: what is saved of the output is y, which the next operator reads anyway.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.sparse_attention.triton_forward import heads_of_query, selected_rows
from kernels.triton_common.device import sigmoid
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _query_gradient(
    q, k, v, indices, gate, y, lse, dy, do, dgate, delta, dq, scale, Tq, Tk, N, G, HKV, K, V,
    BG: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dq of one query, its gate's gradient, and its δ and do, which the keys' gradients need.

    in   q, k, v, indices, gate, y, lse as in the forward kernel; dy [B·Tq·H, V]
    out  delta [B·Tq·H], dq [B·Tq·H, K]; do and dgate dl [B·Tq·H, V] where there is a gate
    """
    query, batch, kv_head, row, is_head = heads_of_query(Tq, G, HKV, BG)
    q_tile = load_rows(q, row, is_head, K, BK)
    do_tile = load_rows(dy, row, is_head, V, BV)
    # δ_t = dy_t·y_t
    shared = do_tile.to(tl.float32) * load_rows(y, row, is_head, V, BV).to(tl.float32)
    delta_t = tl.sum(shared, axis=1)
    tl.store(delta + row, delta_t, mask=is_head)
    if gate is not None:
        share = sigmoid(load_rows(gate, row, is_head, V, BV).to(tl.float32))
        # dl_t = dy_t ⊙ y_t ⊙ (1 − σ(l_t)),   do_t = dy_t ⊙ σ(l_t)
        store_rows(dgate, row, is_head, shared * (1 - share), V, BV)
        do_tile = (do_tile.to(tl.float32) * share).to(do_tile.dtype)
        store_rows(do, row, is_head, do_tile, V, BV)
    lse_t = tl.load(lse + row, mask=is_head, other=0.0)
    gradient = tl.zeros((BG, BK), tl.float32)
    for start in range(0, N, BN):
        # s ∈ S_t
        at, used = selected_rows(indices, query, batch, kv_head, start, N, Tk, HKV, BN)
        k_tile = load_rows(k, at, used, K, BK)
        v_tile = load_rows(v, at, used, V, BV)
        # p_ts = e^(scale·q_t·k_s − lse_t)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale - lse_t[:, None]
        p = tl.exp(tl.where(used[None], scores, float("-inf")))
        # ds_ts = p_ts·(do_t·v_s − δ_t)
        ds = p * (tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee") - delta_t[:, None])
        # dq_t = scale·Σ_s ds_ts·k_s
        gradient += tl.dot(ds.to(k_tile.dtype), k_tile, input_precision="ieee")
    store_rows(dq, row, is_head, gradient * scale, K, BK)


@triton.jit
def _key_gradients(
    q, k, v, first, selector, bits, lse, do, delta, dk, dv, scale, Tk, BLOCKS, G, HKV, K, V,
    BQ: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys, from the queries that select any of them and the heads of one group.

    in   q, k, v; first, selector, bits of `Selectors`; lse, do, delta
    out  dk [B·Tk·HKV, K], dv [B·Tk·HKV, V]
    """
    block = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.arange(0, BS)
    key = block % BLOCKS * BS + slot
    is_key = key < Tk
    row = (block // BLOCKS * Tk + key) * HKV + kv_head
    k_tile, v_tile = load_rows(k, row, is_key, K, BK), load_rows(v, row, is_key, V, BV)
    dk_tile, dv_tile = tl.zeros((BS, BK), tl.float32), tl.zeros((BS, BV), tl.float32)
    begin, end = tl.load(first + block), tl.load(first + block + 1)
    for start in range(begin * G, end * G, BQ):
        member = start + tl.arange(0, BQ)
        is_member = member < end * G
        # the queries t that select a key of the block, each with the G heads of the group
        query = tl.load(selector + member // G, mask=is_member, other=0)
        mask = tl.load(bits + member // G, mask=is_member, other=0)
        at = (query * HKV + kv_head) * G + member % G
        q_tile, do_tile = load_rows(q, at, is_member, K, BK), load_rows(do, at, is_member, V, BV)
        lse_t = tl.load(lse + at, mask=is_member, other=0.0)
        delta_t = tl.load(delta + at, mask=is_member, other=0.0)
        # s ∈ S_t is bit s of t's entry
        chosen = (mask[:, None] >> slot.to(tl.int64)[None]) & 1 == 1
        # p_ts = e^(scale·q_t·k_s − lse_t)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale - lse_t[:, None]
        p = tl.exp(tl.where(chosen, scores, float("-inf")))
        # dv_s = Σ_t p_ts·do_t
        dv_tile += tl.dot(tl.trans(p.to(do_tile.dtype)), do_tile, input_precision="ieee")
        # ds_ts = p_ts·(do_t·v_s − δ_t)
        ds = p * (tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee") - delta_t[:, None])
        # dk_s = scale·Σ_t ds_ts·q_t
        dk_tile += tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile, input_precision="ieee")
    store_rows(dk, row, is_key, dk_tile * scale, K, BK)
    store_rows(dv, row, is_key, dv_tile, V, BV)


query_gradient_tuned = Tuned(
    _query_gradient,
    [
        triton.Config({"BN": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (32, 4, 3), (128, 8, 2), (32, 2, 2))
    ],
    ["G", "K", "V", "N"],
)
key_gradients_tuned = Tuned(
    _key_gradients,
    [
        triton.Config({"BQ": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (32, 4, 2), (128, 8, 2), (64, 8, 1), (32, 4, 1))
    ],
    ["G", "K", "V"],
)
