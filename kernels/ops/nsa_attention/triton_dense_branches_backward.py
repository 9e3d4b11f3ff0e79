"""Gradients of a band, triton_dense_branches.py: a kernel with a tile of queries for dq, one with a tile of keys for dk and dv.

Every number has one writer, who adds in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.triton_dense_branches import (
    NO_WINDOW,
    Band,
    band_options,
    banded,
    keys_of,
    sees,
)
from kernels.ops.nsa_attention.triton_parts import fitting, in_base_2, load_gradient, product
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds, padded
from kernels.triton_common.tiles import load_rows, store_rows


@triton.jit
def _query_gradient(
    q, k, v, do, gates, lse, delta, before, dq, table, cu, first_key, SHIFT, WINDOW, scale, BRANCH: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq = (before +) scale · Σ ds·k of a tile of queries of one head."""
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BQ)
    if sequence >= 0:
        head = tl.program_id(1)
        token = first + tl.arange(0, BQ)
        row, inside = token * HEADS + head, token < end
        position = (token - begin).to(tl.int32) + SHIFT
        queries = load_rows(q, row, inside, K, BK)
        d_out = load_gradient(do, gates, row, inside, BRANCH, V, BV)
        shift = tl.load(lse + row, mask=inside, other=0.0)
        less = tl.load(delta + row * 3 + BRANCH, mask=inside, other=0.0)
        origin = tl.load(first_key + sequence).to(tl.int64)
        start, stop = keys_of(begin, first, end, SHIFT, WINDOW, BQ, SIZE, STRIDE)
        total = tl.zeros((BQ, BK), tl.float32)
        for at in range(start, stop, BN):
            key = at + tl.arange(0, BN)
            key_row = (origin + key) * (HEADS // GROUP) + head // GROUP
            keys = load_rows(k, key_row, key < stop, K, BK)
            scores = product(queries, keys) * in_base_2(scale) - shift[:, None]
            visible = sees(key[None], position[:, None], WINDOW, SIZE, STRIDE)
            weights = tl.exp2(tl.where(visible, scores, float("-inf")))
            d_weights = product(d_out, load_rows(v, key_row, key < stop, V, BV))
            d_scores = (weights * (d_weights - less[:, None])).to(keys.dtype)
            total += tl.dot(d_scores, keys, input_precision="ieee")
        total *= scale
        if before is not None:
            total += load_rows(before, row, inside, K, BK).to(tl.float32)
        store_rows(dq, row, inside, total, K, BK)


@triton.jit
def _key_gradients(
    q, k, v, do, gates, lse, delta, dk, dv, table, cu, first_key, SHIFT, WINDOW, scale, BRANCH: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys, from EACH heads of queries: of a whole group, or parts of one head each."""
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
        start = tl.maximum(low * STRIDE + (SIZE - 1) - SHIFT, 0)
        stop = tl.minimum(low + (BN - 1) + WINDOW - SHIFT, queries_here)
        dk_total, dv_total = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BV), tl.float32)
        for member in range(EACH):
            for at in range(start, stop, BQ):
                query = at + tl.arange(0, BQ)
                there = query < stop
                row = (cu_begin + query) * HEADS + slot * EACH + member
                queries = load_rows(q, row, there, K, BK)
                d_out = load_gradient(do, gates, row, there, BRANCH, V, BV)
                shift = tl.load(lse + row, mask=there, other=0.0)
                less = tl.load(delta + row * 3 + BRANCH, mask=there, other=0.0)
                scores = product(keys, queries) * in_base_2(scale) - shift[None]
                visible = sees(key[:, None], query[None] + SHIFT, WINDOW, SIZE, STRIDE)
                weights = tl.exp2(tl.where(visible & there[None], scores, float("-inf")))
                dv_total += tl.dot(weights.to(d_out.dtype), d_out, input_precision="ieee")
                d_scores = (weights * (product(values, d_out) - less[None])).to(queries.dtype)
                dk_total += tl.dot(d_scores, queries, input_precision="ieee")
        out_row = token * (HEADS // EACH) + slot
        store_rows(dk, out_row, inside, dk_total * scale, K, BK)
        store_rows(dv, out_row, inside, dv_total, V, BV)


@triton.jit
def _sum_group(
    parts, out, ROWS, GROUP: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BW: tl.constexpr
):
    """out [ROWS, WIDTH] = Σ over the group of parts [ROWS, GROUP, WIDTH]."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    total = tl.zeros((BR, BW), tl.float32)
    for member in range(GROUP):
        total += load_rows(parts, row * GROUP + member, row < ROWS, WIDTH, BW)
    store_rows(out, row, row < ROWS, total, WIDTH, BW)


_query_gradient_tuned = banded(_query_gradient, "BN")
_key_gradients_tuned = banded(_key_gradients, "BQ")


def band_backward(
    gradient: tuple[Tensor, Tensor, Tensor],
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Band,
    scale: float,
    cu_seqlens: Tensor | None,
    before: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q (with `before` added), k and v; gradient: do, gates, delta fp32 [B, Tq, H, 3]."""
    cu, options = boundaries(q, cu_seqlens), band_options(q, k, v, band)
    numbers = (band.first, band.shift, band.window, scale, band.branch)
    rows = fitting(64, k, v)
    dq, table = torch.empty_like(q), chunk_table(q, cu_seqlens, rows)
    _query_gradient_tuned[(len(table), q.shape[2])](
        q, k, v, *gradient[:2], lse, gradient[2], before, dq, table, cu, *numbers, **options, BQ=rows
    )
    dk, dv, each = _key_gradient_room(k, v, q.shape[2], band)
    table = chunk_table(k, band.first if band.packed else None, rows)
    _key_gradients_tuned[(len(table), q.shape[2] // each)](
        q, k, v, *gradient[:2], lse, gradient[2], dk, dv, table, cu, *numbers, **options, EACH=each, BN=rows
    )
    if each < options["GROUP"]:
        dk, dv = _summed(dk, k), _summed(dv, v)
    return dq, dk, dv


def _key_gradient_room(k: Tensor, v: Tensor, heads: int, band: Band) -> tuple[Tensor, Tensor, int]:
    """Where dk and dv go, and how many heads a program adds up.

    Compressed keys are few, and all later queries see them: there every head has a program and a part of its
    own, and room that no sequence fills has to hold zeros.
    """
    if band.window < NO_WINDOW:
        return torch.empty_like(k), torch.empty_like(v), heads // k.shape[2]
    shape, options = (*k.shape[:2], heads), {"dtype": torch.float32, "device": k.device}
    return torch.zeros(*shape, k.shape[3], **options), torch.zeros(*shape, v.shape[3], **options), 1


def _summed(parts: Tensor, like: Tensor) -> Tensor:
    out, rows = torch.empty_like(like), like.shape[:3].numel()
    _sum_group[(triton.cdiv(rows, 16),)](
        parts, out, rows, parts.shape[2] // like.shape[2], like.shape[3], BR=16, BW=padded(like.shape[3])
    )
    return out
