"""Gradients of the branches of native sparse attention: dq by query, dk and dv by key.

    p_ts = 2^(a_ts − lse_t),   do'_t = g_t·do_t,   δ_t = do'_t·o_t,   ds_ts = p_ts·(do'_t·v_s − δ_t)
    dq_t = scale·Σ_s ds_ts·k_s,   dk_s = scale·Σ_t ds_ts·q_t,   dv_s = Σ_t p_ts·do'_t

Every number has one writer, who adds in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.triton_forward import (
    NO_WINDOW,
    BlockQueries,
    BranchGradient,
    BranchInputs,
    DenseBranch,
    block_options,
    block_queries,
    count,
    dense_kernel,
    dense_options,
    fitting,
    in_base_2,
    keys_at,
    keys_of,
    load_gradient,
    over_blocks,
    own_key,
    product,
    sees,
)
from kernels.packing import boundaries
from kernels.triton_common import chunk_bounds, chunk_table, padded
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned

# A dense branch: dq by tiles of queries, dk and dv by tiles of keys.


@triton.jit
def _dense_query_gradient(
    q, k, v, do, gates, lse, delta, before, dq, table, cu, first_key, SHIFT, WINDOW, scale, BRANCH: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq_t = before_t + scale·Σ_j ds_tj·k_j of a tile of queries of one head.

    in   q, k, v, lse as in the forward kernel; do, gates [Tq·HEADS, 3], delta [Tq·HEADS, 3]; before: the dq of
         another branch, or None
    out  dq [Tq·HEADS, K]
    """
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BQ)
    if sequence >= 0:
        head = tl.program_id(1)
        token = first + tl.arange(0, BQ)
        row, inside = token * HEADS + head, token < end
        position = (token - begin).to(tl.int32) + SHIFT
        queries = load_rows(q, row, inside, K, BK)
        # do'_t = g_t·do_t
        d_out = load_gradient(do, gates, row, inside, BRANCH, V, BV)
        lse_t = tl.load(lse + row, mask=inside, other=0.0)
        delta_t = tl.load(delta + row * 3 + BRANCH, mask=inside, other=0.0)
        origin = tl.load(first_key + sequence).to(tl.int64)
        start, stop = keys_of(begin, first, end, SHIFT, WINDOW, BQ, SIZE, STRIDE)
        total = tl.zeros((BQ, BK), tl.float32)
        for at in range(start, stop, BN):
            key = at + tl.arange(0, BN)
            key_row = (origin + key) * (HEADS // GROUP) + head // GROUP
            keys = load_rows(k, key_row, key < stop, K, BK)
            # p_tj = 2^(a_tj − lse_t)
            scores = product(queries, keys) * in_base_2(scale) - lse_t[:, None]
            visible = sees(key[None], position[:, None], WINDOW, SIZE, STRIDE)
            weights = tl.exp2(tl.where(visible, scores, float("-inf")))
            # ds_tj = p_tj·(do'_t·v_j − δ_t)
            d_weights = product(d_out, load_rows(v, key_row, key < stop, V, BV))
            d_scores = (weights * (d_weights - delta_t[:, None])).to(keys.dtype)
            # dq_t = scale·Σ_j ds_tj·k_j
            total += tl.dot(d_scores, keys, input_precision="ieee")
        total *= scale
        if before is not None:
            total += load_rows(before, row, inside, K, BK).to(tl.float32)
        store_rows(dq, row, inside, total, K, BK)


@triton.jit
def _dense_key_gradients(
    q, k, v, do, gates, lse, delta, dk, dv, table, cu, first_key, SHIFT, WINDOW, scale, BRANCH: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """dk_j and dv_j of a tile of keys, from EACH heads of queries: of a whole group, or parts of one head each.

    in      q, k, v, do, gates, lse, delta as for the queries
    out     dk [Tk·HEADS/EACH, K], dv [Tk·HEADS/EACH, V]
    layout  table of chunks of BN keys between first_key; cu of the queries
    """
    sequence, begin, end, first = chunk_bounds(table, first_key, tl.program_id(0), BN)
    if sequence >= 0:
        slot = tl.program_id(1)
        token = first + tl.arange(0, BN)
        key, inside = (token - begin).to(tl.int32), token < end
        key_row = token * (HEADS // GROUP) + slot * EACH // GROUP
        keys, values = load_rows(k, key_row, inside, K, BK), load_rows(v, key_row, inside, V, BV)
        cu_begin = tl.load(cu + sequence).to(tl.int64)
        queries_here = (tl.load(cu + sequence + 1).to(tl.int64) - cu_begin).to(tl.int32)
        low = (first - begin).to(tl.int32)
        # the queries that see any key of the tile
        start = tl.maximum(low * STRIDE + (SIZE - 1) - SHIFT, 0)
        stop = tl.minimum(low + (BN - 1) + WINDOW - SHIFT, queries_here)
        dk_total, dv_total = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BV), tl.float32)
        for member in range(EACH):
            for at in range(start, stop, BQ):
                query = at + tl.arange(0, BQ)
                there = query < stop
                row = (cu_begin + query) * HEADS + slot * EACH + member
                queries = load_rows(q, row, there, K, BK)
                # do'_t = g_t·do_t
                d_out = load_gradient(do, gates, row, there, BRANCH, V, BV)
                lse_t = tl.load(lse + row, mask=there, other=0.0)
                delta_t = tl.load(delta + row * 3 + BRANCH, mask=there, other=0.0)
                # p_tj = 2^(a_tj − lse_t)
                scores = product(keys, queries) * in_base_2(scale) - lse_t[None]
                visible = sees(key[:, None], query[None] + SHIFT, WINDOW, SIZE, STRIDE)
                weights = tl.exp2(tl.where(visible & there[None], scores, float("-inf")))
                # dv_j = Σ_t p_tj·do'_t
                dv_total += tl.dot(weights.to(d_out.dtype), d_out, input_precision="ieee")
                # ds_tj = p_tj·(do'_t·v_j − δ_t),   dk_j = scale·Σ_t ds_tj·q_t
                d_scores = (weights * (product(values, d_out) - delta_t[None])).to(queries.dtype)
                dk_total += tl.dot(d_scores, queries, input_precision="ieee")
        out_row = token * (HEADS // EACH) + slot
        store_rows(dk, out_row, inside, dk_total * scale, K, BK)
        store_rows(dv, out_row, inside, dv_total, V, BV)


@triton.jit
def _sum_group(
    parts, out, ROWS, GROUP: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr
):
    """Sum over the heads of a group: out [ROWS, WIDTH] = Σ_g parts [ROWS, GROUP, WIDTH]."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    total = tl.zeros((BR, BW), tl.float32)
    for member in range(GROUP):
        total += load_rows(parts, row * GROUP + member, row < ROWS, WIDTH, BW)
    store_rows(out, row, row < ROWS, total, WIDTH, BW)


_dense_query_gradient_tuned = dense_kernel(_dense_query_gradient, "BN")
_dense_key_gradients_tuned = dense_kernel(_dense_key_gradients, "BQ")


def dense_backward(
    x: BranchInputs,
    gradient: BranchGradient,
    branch: DenseBranch,
    scale: float,
    cu_seqlens: Tensor | None,
    before: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, ·, Hkv, K] and v [B, ·, Hkv, V], in their dtypes.

    before: added to that of q, in its shape; None: nothing.
    """
    (q, k, v), heads = x, x.q.shape[2]
    cu, options = boundaries(q, cu_seqlens), dense_options(x, branch)
    numbers = (branch.first, branch.shift, branch.window, scale, branch.gate)
    rows = fitting(64, k, v)
    dq, table = torch.empty_like(q), chunk_table(q, cu_seqlens, rows)
    _dense_query_gradient_tuned[(len(table), heads)](
        *x, *gradient.arguments, before, dq, table, cu, *numbers, **options, BQ=rows
    )
    dk, dv, each = _key_gradient_room(k, v, heads, branch)
    table = chunk_table(k, branch.first if branch.packed else None, rows)
    _dense_key_gradients_tuned[(len(table), heads // each)](
        *x, *gradient.arguments, dk, dv, table, cu, *numbers, **options, EACH=each, BN=rows
    )
    if each < options["GROUP"]:
        dk, dv = _summed(dk, k), _summed(dv, v)
    return dq, dk, dv


def _key_gradient_room(k: Tensor, v: Tensor, heads: int, branch: DenseBranch) -> tuple[Tensor, Tensor, int]:
    """Memory for dk and dv, and the number of heads that a program adds up.

    Compressed keys are few, and all later queries see them: there every head has a program and a part of its
    own, and room that no packed sequence fills has to hold zeros.
    """
    if branch.window < NO_WINDOW:
        return torch.empty_like(k), torch.empty_like(v), heads // k.shape[2]
    shape, options = (*k.shape[:2], heads), {"dtype": torch.float32, "device": k.device}
    room = torch.zeros if branch.packed else torch.empty
    return room(*shape, k.shape[3], **options), room(*shape, v.shape[3], **options), 1


def _summed(parts: Tensor, like: Tensor) -> Tensor:
    out, rows = torch.empty_like(like), like.shape[:3].numel()
    _sum_group[(triton.cdiv(rows, 16),)](
        parts, out, rows, parts.shape[2] // like.shape[2], like.shape[3], BR=16, BW=padded(like.shape[3])
    )
    return out


# The selected blocks: dq by query, as forward; dk and dv by block of keys.
#
# A block's queries come from `block_queries`. The first block is chosen by all: a list is cut into parts, and the
# sums of the parts are added in their order.


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
