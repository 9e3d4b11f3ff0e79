"""Sparse attention forward: a program has one query and up to BG of the query heads of one KV head."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.device import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def heads_of_query(Tq, G, HKV, BG: tl.constexpr):
    """This program's query row, the first row of its batch among keys, its KV head, its query heads' rows."""
    query = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    member = tl.program_id(2) * BG + tl.arange(0, BG)
    row = (query * HKV + kv_head) * G + member
    return query, query // Tq, kv_head, row, member < G


@triton.jit
def selected_rows(indices, query, batch, kv_head, start, N, Tk, HKV, BN: tl.constexpr):
    """Rows of k and v [B·Tk·HKV] at places start … start + BN of a query's list, and which of them are used."""
    place = start + tl.arange(0, BN)
    index = tl.load(indices + query * N + place, mask=place < N, other=-1).to(tl.int64)
    used = index >= 0
    return (batch * Tk + tl.maximum(index, 0)) * HKV + kv_head, used


@triton.jit
def _forward(
    q, k, v, indices, o, lse, scale, Tq, Tk, N, G, HKV, K, V,
    BG: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    query, batch, kv_head, row, is_head = heads_of_query(Tq, G, HKV, BG)
    q_tile = load_rows(q, row, is_head, K, BK)
    largest = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    out = tl.zeros((BG, BV), tl.float32)
    for start in range(0, N, BN):
        at, used = selected_rows(indices, query, batch, kv_head, start, N, Tk, HKV, BN)
        k_tile = load_rows(k, at, used, K, BK)
        v_tile = load_rows(v, at, used, V, BV)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        scores = tl.where(used[None], scores, float("-inf"))
        before, largest = largest, tl.maximum(largest, tl.max(scores, axis=1))
        # Where nothing was used yet, the maximum is −∞ and must not be subtracted from itself.
        centre = tl.where(largest == float("-inf"), 0.0, largest)
        shrink = tl.exp(before - centre)
        p = tl.exp(scores - centre[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        out = out * shrink[:, None] + tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    store_rows(o, row, is_head, out / total[:, None], V, BV)
    tl.store(lse + row, tl.where(empty, 0.0, largest + tl.log(total)), mask=is_head)


forward_tuned = Tuned(
    _forward,
    [
        triton.Config({"BN": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 4, 2), (64, 4, 3), (32, 2, 3), (128, 8, 2))
    ],
    ["G", "K", "V", "N"],
)
