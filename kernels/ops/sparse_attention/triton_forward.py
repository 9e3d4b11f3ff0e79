"""Sparse attention forward: a program has one query and up to BG of the query heads of one KV head.

    o_t = Σ_s p_ts·v_s,   p_ts = e^(scale·q_t·k_s − lse_t),   lse_t = log Σ_s e^(scale·q_t·k_s)     over s ∈ S_t
    y_t = o_t ⊙ σ(l_t), by a gate's logits l; o itself is not written. Without a gate y = o

Sizes of all kernels of this operation:

    Tq, Tk  queries and keys of a sequence; N: places of a query's list
    G, HKV  query heads a KV head, KV heads; BG: query heads of one program
    K, V    widths of keys and values; BK, BV: of their tiles
    BN      places of a list, or BQ members of a block's list, that a tile holds
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.device import sigmoid
from kernels.triton_common.tiles import load_rows, running_max, store_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def heads_of_query(Tq, G, HKV, BG: tl.constexpr):
    """The program's query (b·Tq + t), its sequence b, KV head, rows of its query heads, and which of these exist.

    Three scalars; the rows are int64 [BG], of the axis B·Tq·H; the last is bool [BG].
    """
    query = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    member = tl.program_id(2) * BG + tl.arange(0, BG)
    row = (query * HKV + kv_head) * G + member
    return query, query // Tq, kv_head, row, member < G


@triton.jit
def selected_rows(indices, query, batch, kv_head, start, N, Tk, HKV, BN: tl.constexpr):
    """Rows s of k and v [B·Tk·HKV] at the next BN places of S_t, and which of these places are used."""
    place = start + tl.arange(0, BN)
    index = tl.load(indices + query * N + place, mask=place < N, other=-1).to(tl.int64)
    used = index >= 0
    return (batch * Tk + tl.maximum(index, 0)) * HKV + kv_head, used


@triton.jit
def _forward(
    q, k, v, indices, gate, y, lse, scale, Tq, Tk, N, G, HKV, K, V,
    BG: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Attention of one query over its list.

    in   q [B·Tq·H, K], k [B·Tk·HKV, K], v [B·Tk·HKV, V], indices [B·Tq, N], gate l [B·Tq·H, V] or None
    out  y [B·Tq·H, V], lse [B·Tq·H]; both 0 where S_t is empty
    """
    query, batch, kv_head, row, is_head = heads_of_query(Tq, G, HKV, BG)
    q_tile = load_rows(q, row, is_head, K, BK)
    largest = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    out = tl.zeros((BG, BV), tl.float32)
    for start in range(0, N, BN):
        # s ∈ S_t
        at, used = selected_rows(indices, query, batch, kv_head, start, N, Tk, HKV, BN)
        k_tile = load_rows(k, at, used, K, BK)
        v_tile = load_rows(v, at, used, V, BV)
        # a_ts = scale · q_t·k_s, −∞ in unused places
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        scores = tl.where(used[None], scores, float("-inf"))
        # m = max_s a_ts so far; Σ_s e^(a_ts − m) and Σ_s e^(a_ts − m)·v_s follow it
        largest, centre, shrink = running_max(largest, scores)
        p = tl.exp(scores - centre[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        out = out * shrink[:, None] + tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
    # o_t = Σ_s e^(a_ts − m)·v_s / Σ_s e^(a_ts − m), and 0 where S_t is empty
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    out /= total[:, None]
    if gate is not None:
        # y_t = o_t ⊙ σ(l_t)
        out *= sigmoid(load_rows(gate, row, is_head, V, BV).to(tl.float32))
    store_rows(y, row, is_head, out, V, BV)
    # lse_t = m + log Σ_s e^(a_ts − m)
    tl.store(lse + row, tl.where(empty, 0.0, largest + tl.log(total)), mask=is_head)


forward_tuned = Tuned(
    _forward,
    [
        triton.Config({"BN": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 4, 2), (64, 4, 3), (32, 2, 3), (128, 8, 2))
    ],
    ["G", "K", "V", "N"],
)
