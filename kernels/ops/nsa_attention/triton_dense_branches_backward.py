"""Gradients of a dense branch (triton_dense_branches.py): dq by tiles of queries, dk and dv by tiles of keys.

    p_tj = 2^(a_tj − lse_t),   do'_t = g_t·do_t,   δ_t = do'_t·o_t,   ds_tj = p_tj·(do'_t·v_j − δ_t)
    dq_t = scale·Σ_j ds_tj·k_j,   dk_j = scale·Σ_t ds_tj·q_t,   dv_j = Σ_t p_tj·do'_t

Every number has one writer, who adds in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.triton_dense_branches import (
    NO_WINDOW,
    DenseBranch,
    dense_kernel,
    dense_options,
    keys_of,
    sees,
)
from kernels.ops.nsa_attention.triton_parts import (
    BranchGradient,
    BranchInputs,
    fitting,
    in_base_2,
    load_gradient,
    product,
)
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds, padded
from kernels.triton_common.tiles import load_rows, store_rows


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
    own, and room that no sequence fills has to hold zeros.
    """
    if branch.window < NO_WINDOW:
        return torch.empty_like(k), torch.empty_like(v), heads // k.shape[2]
    shape, options = (*k.shape[:2], heads), {"dtype": torch.float32, "device": k.device}
    return torch.zeros(*shape, k.shape[3], **options), torch.zeros(*shape, v.shape[3], **options), 1


def _summed(parts: Tensor, like: Tensor) -> Tensor:
    out, rows = torch.empty_like(like), like.shape[:3].numel()
    _sum_group[(triton.cdiv(rows, 16),)](
        parts, out, rows, parts.shape[2] // like.shape[2], like.shape[3], BR=16, BW=padded(like.shape[3])
    )
    return out
