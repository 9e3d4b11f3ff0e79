"""Sparse attention on a GPU: over tiles of all keys (triton_masked.py), or by gathering, whichever costs less.

    o_t = Σ_s p_ts·v_s,   p_ts = e^(scale·q_t·k_s − lse_t),   lse_t = log Σ_s e^(scale·q_t·k_s)     over s ∈ S_t
    y_t = o_t ⊙ σ(l_t), by a gate's logits l; o itself is not written. Without a gate y = o

By gathering there is nothing of size Tq × Tk, and work for the selected keys alone:

    forward   a program has one query and the heads that share a KV head, so that a gathered key serves them all
              in one product; online softmax along the query's list, and the gate, if there is one, before the output
              is written. Saved: inputs, the output and log Σ exp of each head
    backward  p is recomputed from the saved sums. dq goes along the lists again, and makes the gate's gradient on the
              way. For dk and dv the lists are inverted by a sort of integers (`selectors`): a program owns BLOCK
              keys, goes over the queries that select any of them, and masks the others; nothing is added atomically,
              so that results repeat bit for bit. Selections that share blocks of keys share products and reads

A group of fewer than 16 heads leaves rows of its tile idle; gathering keys, not products, is what takes time.

Sizes of all kernels of this operation:

    Tq, Tk  queries and keys of a sequence; N: places of a query's list
    G, HKV  query heads a KV head, KV heads; BG: query heads of one program
    K, V    widths of keys and values; BK, BV: of their tiles
    BN      places of a list, or BQ members of a block's list, that a tile holds
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.sparse_attention.select import BLOCK, selectors
from kernels.ops.sparse_attention.triton_masked import masked_attention, masks, selection_of
from kernels.triton_common import padded, sigmoid
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, running_max, store_rows
from kernels.triton_common.tuning import Tuned

# Forward: a program has one query and up to BG of the query heads of one KV head.


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


# Backward: dq by query, as forward; dk and dv by block of keys, from the inverted lists.
#
#     do_t = dy_t ⊙ σ(l_t),   δ_t = do_t·o_t = dy_t·y_t
#     ds_ts = p_ts·(do_t·v_s − δ_t)             dv_s = Σ_t p_ts·do_t
#     dq_t = scale·Σ_s ds_ts·k_s                dk_s = scale·Σ_t ds_ts·q_t
#     dl_t = dy_t ⊙ o_t ⊙ σ(l_t) ⊙ (1 − σ(l_t)) = dy_t ⊙ y_t ⊙ (1 − σ(l_t))
#
# o is not needed: what is saved of the output is y, which the next operator reads anyway.


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


# The backend.

MOST_HEADS = 64
"""Query heads of a program; a larger group takes several."""


@operator
class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, indices, gate, scale):
        q, k, v, indices = (x.contiguous() for x in (q, k, v, indices))
        gate = None if gate is None else gate.contiguous()
        y = q.new_empty(*q.shape[:3], v.shape[-1])
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward_tuned[_grid_of_queries(q, k)](
            q, k, v, indices, gate, y, lse, scale, **_query_sizes(q, k, v, indices)
        )
        ctx.save_for_backward(q, k, v, indices, gate, y, lse)
        ctx.scale = scale
        return y

    @staticmethod
    @first_order
    def backward(ctx, dy):
        q, k, v, indices, gate, y, lse = ctx.saved_tensors
        dy, delta = dy.contiguous(), torch.empty_like(lse)
        do, dgate = (dy, None) if gate is None else (torch.empty_like(dy), torch.empty_like(gate))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        query_gradient_tuned[_grid_of_queries(q, k)](
            q, k, v, indices, gate, y, lse, dy, do, dgate, delta, dq, ctx.scale,
            **_query_sizes(q, k, v, indices),
        )  # fmt: skip
        lists = selectors(indices, k.shape[1])
        blocks = triton.cdiv(k.shape[1], BLOCK)
        key_gradients_tuned[(k.shape[0] * blocks, k.shape[2])](
            q, k, v, lists.first, lists.query, lists.bits, lse, do, delta, dk, dv, ctx.scale,
            BLOCKS=blocks, BS=BLOCK, **_sizes(q, k, v),
        )  # fmt: skip
        return dq, dk, dv, None, dgate, None


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    """Sizes that all kernels share, named as at this page's head."""
    heads = {"G": q.shape[2] // k.shape[2], "HKV": k.shape[2]}
    widths = {"K": q.shape[3], "V": v.shape[3], "BK": padded(q.shape[3]), "BV": padded(v.shape[3])}
    return {"Tk": k.shape[1], **heads, **widths}


def _query_sizes(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> dict[str, int]:
    """Sizes of the kernels by query."""
    sizes = _sizes(q, k, v)
    return {**sizes, "Tq": q.shape[1], "N": indices.shape[2], "BG": min(MOST_HEADS, padded(sizes["G"]))}


def _grid_of_queries(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    group = q.shape[2] // k.shape[2]
    return q.shape[0] * q.shape[1], k.shape[2], triton.cdiv(group, min(MOST_HEADS, padded(group)))


def sparse_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.sparse_attention` on a GPU; indices are positions along the packed axis already.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], indices integer [B, Tq, n], gate_logits [B, Tq, H, V] or None
    -> [B, Tq, H, V] in q's dtype, computed in at least fp32.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if masks(q.shape[2], k.shape[2], k.shape[1], indices.shape[2]):
        selection = selection_of(indices, k.shape[1])
        return masked_attention(q, k, v, selection, gate_logits=gate_logits, scale=scale)[0]
    return _SparseAttention(q, k, v, indices, gate_logits, scale)
