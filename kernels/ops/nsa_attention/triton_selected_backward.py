"""Gradients of the selection branch, triton_selected.py: dq by query as there, dk and dv by block of keys.

    p_ts = 2^(a_ts − lse_t),   do'_t = g_t·do_t,   δ_t = do'_t·o_t,   ds_ts = p_ts·(do'_t·v_s − δ_t)
    dq_t = scale·Σ_s ds_ts·k_s,   dk_s = scale·Σ_t ds_ts·q_t,   dv_s = Σ_t p_ts·do'_t

A block's queries come from triton_block_queries.py. The first block is chosen by all: a list is cut into parts, and
the sums of the parts are added in their order, so that every number has one writer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.triton_block_queries import BlockQueries, block_queries
from kernels.ops.nsa_attention.triton_parts import (
    BranchGradient,
    BranchInputs,
    fitting,
    in_base_2,
    load_gradient,
    product,
)
from kernels.ops.nsa_attention.triton_selected import block_options, count, keys_at, over_blocks, own_key
from kernels.triton_common.device import chunk_bounds, padded
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _selected_query_gradient(
    q, k, v, do, gates, lse, delta, before, dq, chosen, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, SELECT: tl.constexpr, BLOCKS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq_t = before_t + scale·Σ_s ds_ts·k_s of one query with the heads of one KV head.

    in   q, k, v, lse, chosen as in the forward kernel; do, gates [Tq·HEADS, 3], delta [Tq·HEADS, 3];
         before [Tq·HEADS, K]: the dq of another branch
    out  dq [Tq·HEADS, K]
    """
    query, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    member = tl.arange(0, BG)
    row, inside = query * HEADS + kv_head * GROUP + member, member < GROUP
    queries = load_rows(q, row, inside, K, BK)
    # do'_t = g_t·do_t
    d_out = load_gradient(do, gates, row, inside, 1, V, BV)
    lse_t = tl.load(lse + row, mask=inside, other=0.0)
    delta_t = tl.load(delta + row * 3 + 1, mask=inside, other=0.0)
    own = own_key(query, QUERIES, SHIFT)
    list_of_blocks = chosen + (query * (HEADS // GROUP) + kv_head) * N
    stop = count(list_of_blocks, N, BLOCKS) * SELECT
    total = tl.zeros((BG, BK), tl.float32)
    for at in range(0, stop, BN):
        # s ≤ t in the blocks of S_t
        key, seen = keys_at(list_of_blocks, at + tl.arange(0, BN), stop, own, SELECT)
        key_row = key * (HEADS // GROUP) + kv_head
        keys = load_rows(k, key_row, seen, K, BK)
        # p_ts = 2^(a_ts − lse_t)
        scores = product(queries, keys) * in_base_2(scale) - lse_t[:, None]
        weights = tl.exp2(tl.where(seen[None], scores, float("-inf")))
        # ds_ts = p_ts·(do'_t·v_s − δ_t)
        d_weights = product(d_out, load_rows(v, key_row, seen, V, BV))
        d_scores = (weights * (d_weights - delta_t[:, None])).to(keys.dtype)
        # dq_t = scale·Σ_s ds_ts·k_s
        total += tl.dot(d_scores, keys, input_precision="ieee")
    total = total * scale + load_rows(before, row, inside, K, BK).to(tl.float32)
    store_rows(dq, row, inside, total, K, BK)


@triton.jit
def _selected_key_gradients(
    q, k, v, do, gates, lse, delta, dk, dv, entries, parts, offsets, blocks, first_key, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SELECT: tl.constexpr, SPLIT: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
    BQ: tl.constexpr,
):  # fmt: skip
    """dk_s and dv_s of a tile of keys of a block, from the queries of one part of the block's list.

    in      q, k, v, do, gates, lse, delta as for the queries
    out     dk [parts, SELECT, K], dv [parts, SELECT, V]
    layout  entries, parts, offsets, blocks, first_key: fields of `BlockQueries`; SPLIT queries of a part
    """
    part = tl.program_id(0).to(tl.int64)
    owner, _, end, first = chunk_bounds(parts, offsets, part, SPLIT)
    if owner >= 0:
        kv_head = owner % (HEADS // GROUP)
        sequence, _, key_end, block = chunk_bounds(blocks, first_key, owner // (HEADS // GROUP), SELECT)
        if sequence >= 0:
            offset = tl.program_id(1) * BN + tl.arange(0, BN)
            key = block + offset
            inside = (offset < SELECT) & (key < key_end)
            key_row = key * (HEADS // GROUP) + kv_head
            keys, values = load_rows(k, key_row, inside, K, BK), load_rows(v, key_row, inside, V, BV)
            dk_total, dv_total = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BV), tl.float32)
            place = tl.arange(0, BQ * BG)
            for at in range(first, tl.minimum(first + SPLIT, end), BQ):
                # the queries t that chose the block, each with the heads of the group
                entry = at + place // BG
                there = (entry < tl.minimum(first + SPLIT, end)) & (place % BG < GROUP)
                query = tl.load(entries + entry, mask=there, other=0).to(tl.int64)
                row = query * HEADS + kv_head * GROUP + place % BG
                queries = load_rows(q, row, there, K, BK)
                # do'_t = g_t·do_t
                d_out = load_gradient(do, gates, row, there, 1, V, BV)
                lse_t = tl.load(lse + row, mask=there, other=0.0)
                delta_t = tl.load(delta + row * 3 + 1, mask=there, other=0.0)
                # p_ts = 2^(a_ts − lse_t), 0 for s > t
                scores = product(keys, queries) * in_base_2(scale) - lse_t[None]
                seen = there[None] & (key[:, None] <= own_key(query, QUERIES, SHIFT)[None])
                weights = tl.exp2(tl.where(seen, scores, float("-inf")))
                # dv_s = Σ_t p_ts·do'_t
                dv_total += tl.dot(weights.to(d_out.dtype), d_out, input_precision="ieee")
                # ds_ts = p_ts·(do'_t·v_s − δ_t),   dk_s = scale·Σ_t ds_ts·q_t
                d_scores = (weights * (product(values, d_out) - delta_t[None])).to(queries.dtype)
                dk_total += tl.dot(d_scores, queries, input_precision="ieee")
            out_row = part * SELECT + offset
            store_rows(dk, out_row, offset < SELECT, dk_total * scale, K, BK)
            store_rows(dv, out_row, offset < SELECT, dv_total, V, BV)


@triton.jit
def _add_parts(
    parts, out, first_part, blocks, first_key, KV_HEADS: tl.constexpr, SELECT: tl.constexpr,
    WIDTH: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Add up the parts of each block, first to last: parts [·, SELECT, WIDTH] -> out [Tk, KV_HEADS, WIDTH]."""
    owner = tl.program_id(0).to(tl.int64)
    sequence, _, key_end, block = chunk_bounds(blocks, first_key, owner // KV_HEADS, SELECT)
    if sequence >= 0:
        offset = tl.program_id(1) * BN + tl.arange(0, BN)
        total = tl.zeros((BN, BW), tl.float32)
        for part in range(tl.load(first_part + owner), tl.load(first_part + owner + 1)):
            row = tl.full((BN,), part, tl.int64) * SELECT + offset
            total += load_rows(parts, row, offset < SELECT, WIDTH, BW)
        row = (block + offset) * KV_HEADS + owner % KV_HEADS
        store_rows(out, row, (offset < SELECT) & (block + offset < key_end), total, WIDTH, BW)


_selected_query_gradient_tuned = over_blocks(_selected_query_gradient)
_selected_key_gradients_tuned = Tuned(
    _selected_key_gradients,
    [
        triton.Config({}, num_warps=warps, num_stages=stages)
        for warps, stages in ((4, 2), (8, 2), (4, 3), (4, 1))
    ],
    ["HEADS", "GROUP", "SELECT", "K", "V"],
)


def selected_backward(
    x: BranchInputs,
    gradient: BranchGradient,
    chosen: Tensor,
    sizes: Sizes,
    scale: float,
    cu_seqlens: Tensor | None,
    before: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, Tk, Hkv, K] and v [B, Tk, Hkv, V], in their dtypes.

    before: added to that of q, in its shape. chosen int32 [B, Tq, Hkv, n], as `selected_forward` takes it.
    """
    q, k, v = x
    dq, shape = torch.empty_like(q), (q.shape[1], k.shape[1] - q.shape[1], scale)
    _selected_query_gradient_tuned[(q.shape[0] * q.shape[1], k.shape[2])](
        *x, *gradient.arguments, before, dq, chosen, *shape, **block_options(x, sizes)
    )
    lists, options = block_queries(chosen, k, sizes.select_size, cu_seqlens), x.widths
    dk, dv = (
        torch.empty(len(lists.parts), sizes.select_size, y.shape[3], dtype=torch.float32, device=y.device)
        for y in (k, v)
    )
    rows = fitting(64, k, v)
    group = triton.next_power_of_2(options["GROUP"])
    keys = min(rows, padded(sizes.select_size))
    tiles = triton.cdiv(sizes.select_size, keys)
    _selected_key_gradients_tuned[(len(lists.parts), tiles)](
        *x, *gradient.arguments, dk, dv, lists.queries, lists.parts, lists.offsets, lists.blocks, lists.first_key,
        *shape, **options, SELECT=sizes.select_size, SPLIT=lists.split, BG=group, BN=keys, BQ=max(1, rows // group),
    )  # fmt: skip
    return dq, *(_added(parts, y, lists, sizes.select_size) for parts, y in ((dk, k), (dv, v)))


def _added(parts: Tensor, like: Tensor, lists: BlockQueries, select_size: int) -> Tensor:
    out, rows = torch.empty_like(like), min(64, padded(select_size))
    _add_parts[(len(lists.offsets) - 1, triton.cdiv(select_size, rows))](
        parts, out, lists.first_part, lists.blocks, lists.first_key, like.shape[2], select_size, like.shape[3],
        BN=rows, BW=padded(like.shape[3]),
    )  # fmt: skip
    return out
