"""Sparse attention over tiles: every key between a tile's first and last is read, those not selected are masked.

    o_t = Σ_s p_ts·v_s,   p_ts = e^(scale·q_t·k_s − lse_t),   lse_t = log Σ_s e^(scale·q_t·k_s)     over s ∈ S_t
    y_t = o_t ⊙ σ(l_t), by a gate's logits l. Without a gate y = o
    do_t = dy_t ⊙ σ(l_t),   δ_t = do_t·o_t = dy_t·y_t,   dl_t = dy_t ⊙ y_t ⊙ (1 − σ(l_t))
    ds_ts = p_ts·(do_t·v_s − δ_t)             dv_s = Σ_t p_ts·do_t
    dq_t = scale·Σ_s ds_ts·k_s                dk_s = scale·Σ_t ds_ts·q_t

Keys that lie side by side are read whole and serve all queries of a tile, where a list's keys are read one by one for
each query: up to tens of keys masked for one selected, tiles are faster (`masks`). Exponentials are powers of 2.

Sizes of all kernels:

    Tq, Tk  queries and keys of a sequence; W: words of a query's bits
    G, HKV  query heads a KV head, KV heads
    K, V    widths of keys and values; BK, BV: of their tiles
    BQ, BS  queries and keys of a tile
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import padded, sigmoid
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned

# Lists of keys by query as one bit a pair.
#
# A bit a pair is T²/8 bytes, 8 MB for 8,192 tokens, where a list of 4,096 places takes 134 MB. Bits are set by atomic
# OR, whose result does not depend on the order, so that results repeat bit for bit.

BLOCK = tl.constexpr(64)
"""Keys whose queries `Selection.queries` names together."""
MASK_COST = 128
"""Masked keys of one query head that take as long as one place of a list, for one query head a KV head.

Both ways, forward and backward, on an H100 at 8,192 and 32,768 tokens with lists of 2,048 keys and three query heads to
a KV head: tiles take 0.20 and 0.42 of the time that lists take (results/published/gpu_h100.csv)."""


class Selection(NamedTuple):
    """The keys that queries select, int32.

    bits    [B, Tq, W]: bit i of word w says that the query selects key 32·w + i; W words hold Tk, rounded up to 128
    keys    [B, Tq, 2]: a query's first key and the one after its last; Tk and 0 where it selects none
    queries [B, ⌈Tk/BLOCK⌉, 2]: the first query that may select a key of a block, and the one after the last
    """

    bits: Tensor
    keys: Tensor
    queries: Tensor


def masks(queries_heads: int, kv_heads: int, keys: int, places: int) -> bool:
    """Return whether tiles over all keys cost less than reading the lists' keys one by one."""
    return keys * queries_heads <= MASK_COST * places * kv_heads


def selection_of(indices: Tensor, keys: int) -> Selection:
    """Return the selection that lists [B, Tq, n] make among `keys` keys, −1 where a place is unused."""
    return Selection(*_selection(indices, keys, returns=(True,) * 3))


@operator
def _selection(indices: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, queries, places = indices.shape
    bits, ends = no_bits(indices, keys)
    _set_bits[(batch * queries,)](indices.contiguous(), bits, ends, places, bits.shape[2], keys, BN=1024)
    return bits, ends, query_spans(ends, keys)


def no_bits(x: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Bits of a `Selection` of x's queries [B, Tq, ...] among `keys` keys, none set, and room for its `keys`."""
    int32 = {"dtype": torch.int32, "device": x.device}
    bits = torch.zeros(*x.shape[:2], 4 * triton.cdiv(keys, 128), **int32)
    return bits, torch.empty(*x.shape[:2], 2, **int32)


def query_spans(ends: Tensor, keys: int) -> Tensor:
    """`queries` of a `Selection` from its `keys`, ends [B, Tq, 2]."""
    batch, queries, _ = ends.shape
    blocks = triton.cdiv(keys, BLOCK.value)
    spans = torch.empty(batch, blocks, 2, dtype=torch.int32, device=ends.device)
    _query_spans[(blocks, batch)](ends, spans, queries, blocks, BN=1024)
    return spans


@triton.jit
def _set_bits(indices, bits, ends, N, W, Tk, BN: tl.constexpr):
    """The bits of one query's list, and its first and last key.

    in   indices [B·Tq, N], −1 where unused
    out  bits [B·Tq, W], 0 before; ends [B·Tq, 2]
    """
    query = tl.program_id(0).to(tl.int64)
    first, last = tl.full((BN,), 0, tl.int32) + Tk, tl.zeros((BN,), tl.int32)
    for start in range(0, N, BN):
        place = start + tl.arange(0, BN)
        key = tl.load(indices + query * N + place, mask=place < N, other=-1).to(tl.int32)
        used = key >= 0
        one = tl.full((BN,), 1, tl.int32) << (key & 31)
        tl.atomic_or(bits + query * W + (key >> 5), one, mask=used, sem="relaxed")
        first = tl.minimum(first, tl.where(used, key, Tk))
        last = tl.maximum(last, key + 1)
    tl.store(ends + query * 2, tl.min(first, axis=0))
    tl.store(ends + query * 2 + 1, tl.max(last, axis=0))


@triton.jit
def _query_spans(ends, spans, Tq, BLOCKS, BN: tl.constexpr):
    """The queries whose first and last keys have a block of BLOCK keys between them.

    in   ends [B·Tq, 2]
    out  spans [B·BLOCKS, 2]
    """
    block = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    begin = block * BLOCK
    first, last = tl.full((BN,), 0, tl.int32) + Tq, tl.zeros((BN,), tl.int32)
    for start in range(0, Tq, BN):
        query = start + tl.arange(0, BN)
        at = ends + (batch * Tq + query) * 2
        low = tl.load(at, mask=query < Tq, other=0)
        high = tl.load(at + 1, mask=query < Tq, other=0)
        meets = (low < begin + BLOCK) & (high > begin)
        first = tl.minimum(first, tl.where(meets, query, Tq))
        last = tl.maximum(last, tl.where(meets, query + 1, 0))
    out = spans + (batch * BLOCKS + block) * 2
    tl.store(out, tl.min(first, axis=0))
    tl.store(out + 1, tl.max(last, axis=0))


@triton.jit
def chosen_keys(bits, query, exists, start, W, BS: tl.constexpr):
    """Whether queries [rows] of the axis B·Tq select BS keys, from `start`, a multiple of BS, on: bool [rows, BS]."""
    column = tl.arange(0, BS)[None]
    word = bits + query.to(tl.int64) * W + start // 32
    words = tl.broadcast_to(tl.load(word, mask=exists, other=0)[:, None], (query.shape[0], BS))
    for i in tl.static_range(1, BS // 32):
        words = tl.where(column >= 32 * i, tl.load(word + i, mask=exists, other=0)[:, None], words)
    place = column % 32 if BS >= 32 else start % 32 + column
    return ((words >> place) & 1) != 0


@triton.jit
def key_span(ends, query, exists, BS: tl.constexpr):
    """The keys that any of these queries selects: the first, rounded down to a multiple of BS, and the end."""
    # an unused row has no key: first above last
    first = tl.load(ends + query * 2, mask=exists, other=2147483647)
    last = tl.load(ends + query * 2 + 1, mask=exists, other=0)
    return tl.min(first, axis=0) // BS * BS, tl.max(last, axis=0)


# Attention: kernels that go over tiles of queries and keys and mask what is hidden.

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _queries_of_tile(Tq, G, HKV, BQ: tl.constexpr):
    """The program's sequence, KV head, queries (rows of B·Tq), rows of B·Tq·H, and which of the queries exist.

    The last queries come first: where attention is causal they have the most keys.
    """
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    place = (tl.num_programs(0) - 1 - tl.program_id(0)) * BQ + tl.arange(0, BQ)
    query = batch * Tq + place
    return batch, head // G, query, query * (G * HKV) + head, place < Tq


@triton.jit
def _masked_forward(
    q, k, v, bits, ends, gate, y, lse, scale, Tq, Tk, W, G, HKV, K, V,
    BQ: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Attention of BQ queries of one head.

    in   q [B·Tq·H, K], k [B·Tk·HKV, K], v [B·Tk·HKV, V], bits and keys of `Selection`, gate l [B·Tq·H, V] or None
    out  y [B·Tq·H, V], lse [B·Tq·H]; both 0 where S_t is empty
    """
    batch, kv_head, query, row, exists = _queries_of_tile(Tq, G, HKV, BQ)
    q_tile = load_rows(q, row, exists, K, BK)
    largest = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    out = tl.zeros((BQ, BV), tl.float32)
    begin, end = key_span(ends, query, exists, BS)
    for start in range(begin, end, BS):
        key = start + tl.arange(0, BS)
        at = (batch * Tk + key) * HKV + kv_head
        k_tile = load_rows(k, at, key < Tk, K, BK)
        # a_ts = scale·q_t·k_s·log₂e, −∞ where s ∉ S_t
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * _LOG2E)
        scores = tl.where(chosen_keys(bits, query, exists, start, W, BS), scores, float("-inf"))
        # m = max_s a_ts so far; a finite centre, as −∞ − (−∞) would be NaN
        higher = tl.maximum(largest, tl.max(scores, axis=1))
        centre = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(scores - centre[:, None])
        shrink = tl.exp2(largest - centre)
        total = total * shrink + tl.sum(p, axis=1)
        v_tile = load_rows(v, at, key < Tk, V, BV)
        out = out * shrink[:, None] + tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
        largest = higher
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    out /= total[:, None]
    if gate is not None:
        # y_t = o_t ⊙ σ(l_t)
        out *= sigmoid(load_rows(gate, row, exists, V, BV).to(tl.float32))
    store_rows(y, row, exists, out, V, BV)
    tl.store(lse + row, tl.where(empty, 0.0, (largest + tl.log2(total)) * _LN2), mask=exists)


@triton.jit
def _masked_query_gradient(
    q, k, v, bits, ends, gate, y, lse, dy, do, dgate, delta, dq, scale, Tq, Tk, W, G, HKV, K, V,
    BQ: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dq of BQ queries of one head, their gate's gradient, and δ and do, which the keys' gradients need.

    in   q, k, v, bits, ends, gate, y, lse as in the forward kernel; dy [B·Tq·H, V]
    out  delta [B·Tq·H], dq [B·Tq·H, K]; do and dgate dl [B·Tq·H, V] where there is a gate
    """
    batch, kv_head, query, row, exists = _queries_of_tile(Tq, G, HKV, BQ)
    do_tile = load_rows(dy, row, exists, V, BV)
    # δ_t = dy_t·y_t
    shared = do_tile.to(tl.float32) * load_rows(y, row, exists, V, BV).to(tl.float32)
    delta_t = tl.sum(shared, axis=1)
    tl.store(delta + row, delta_t, mask=exists)
    if gate is not None:
        share = sigmoid(load_rows(gate, row, exists, V, BV).to(tl.float32))
        # dl_t = dy_t ⊙ y_t ⊙ (1 − σ(l_t)),   do_t = dy_t ⊙ σ(l_t)
        store_rows(dgate, row, exists, shared * (1 - share), V, BV)
        do_tile = (do_tile.to(tl.float32) * share).to(do_tile.dtype)
        store_rows(do, row, exists, do_tile, V, BV)
    q_tile = load_rows(q, row, exists, K, BK)
    lse_t = tl.load(lse + row, mask=exists, other=0.0) * _LOG2E
    gradient = tl.zeros((BQ, BK), tl.float32)
    begin, end = key_span(ends, query, exists, BS)
    for start in range(begin, end, BS):
        key = start + tl.arange(0, BS)
        at = (batch * Tk + key) * HKV + kv_head
        k_tile, v_tile = load_rows(k, at, key < Tk, K, BK), load_rows(v, at, key < Tk, V, BV)
        # p_ts = e^(scale·q_t·k_s − lse_t), 0 where s ∉ S_t
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * _LOG2E) - lse_t[:, None]
        chosen = chosen_keys(bits, query, exists, start, W, BS)
        p = tl.exp2(tl.where(chosen, scores, float("-inf")))
        # ds_ts = p_ts·(do_t·v_s − δ_t)
        ds = p * (tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee") - delta_t[:, None])
        # dq_t = scale·Σ_s ds_ts·k_s
        gradient += tl.dot(ds.to(k_tile.dtype), k_tile, input_precision="ieee")
    store_rows(dq, row, exists, gradient * scale, K, BK)


@triton.jit
def _masked_key_gradients(
    q, k, v, bits, spans, lse, do, delta, dk, dv, scale, Tq, Tk, W, BLOCKS, G, HKV, K, V,
    BQ: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dk and dv of BS = BLOCK keys, from the queries that may select them and the heads of one group.

    in   q, k, v; bits and queries of `Selection`; lse, do, delta
    out  dk [B·Tk·HKV, K], dv [B·Tk·HKV, V]
    """
    block, kv_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    key = block * BS + tl.arange(0, BS)
    is_key = key < Tk
    at = (batch * Tk + key) * HKV + kv_head
    k_tile, v_tile = load_rows(k, at, is_key, K, BK), load_rows(v, at, is_key, V, BV)
    dk_tile, dv_tile = tl.zeros((BS, BK), tl.float32), tl.zeros((BS, BV), tl.float32)
    span = spans + (batch * BLOCKS + block) * 2
    begin, end = tl.load(span), tl.load(span + 1)
    tiles = tl.cdiv(tl.maximum(end - begin, 0), BQ)
    # one head of the group after another, each over all tiles of queries
    for step in range(tiles * G):
        place = begin + step // G * BQ + tl.arange(0, BQ)
        exists = place < end
        query = batch * Tq + place
        row = query * (G * HKV) + kv_head * G + step % G
        q_tile, do_tile = load_rows(q, row, exists, K, BK), load_rows(do, row, exists, V, BV)
        lse_t = tl.load(lse + row, mask=exists, other=0.0) * _LOG2E
        delta_t = tl.load(delta + row, mask=exists, other=0.0)
        # p_ts = e^(scale·q_t·k_s − lse_t), 0 where s ∉ S_t
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * (scale * _LOG2E) - lse_t[:, None]
        chosen = chosen_keys(bits, query, exists, block * BS, W, BS)
        p = tl.exp2(tl.where(chosen, scores, float("-inf")))
        # dv_s = Σ_t p_ts·do_t
        dv_tile += tl.dot(tl.trans(p.to(do_tile.dtype)), do_tile, input_precision="ieee")
        # ds_ts = p_ts·(do_t·v_s − δ_t)
        ds = p * (tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee") - delta_t[:, None])
        # dk_s = scale·Σ_t ds_ts·q_t
        dk_tile += tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile, input_precision="ieee")
    store_rows(dk, at, is_key, dk_tile * scale, K, BK)
    store_rows(dv, at, is_key, dv_tile, V, BV)


def _tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BQ": queries, "BS": keys}, num_warps=warps, num_stages=stages)
        for queries, keys, warps, stages in sizes
    ]


_KEYS = ["G", "K", "V"]
# The last ones are for wide heads and fp32, whose tiles fill the shared memory sooner.
_BY_QUERY = _tiles((64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 4, 1), (32, 32, 4, 1))
forward_tuned = Tuned(_masked_forward, _BY_QUERY, _KEYS)
query_gradient_tuned = Tuned(_masked_query_gradient, _BY_QUERY, _KEYS)
key_gradients_tuned = Tuned(
    _masked_key_gradients,
    [
        triton.Config({"BQ": queries}, num_warps=warps, num_stages=stages)
        for queries, warps, stages in (
            (64, 4, 2),
            (64, 4, 3),
            (128, 8, 2),
            (32, 4, 1),
            (16, 8, 1),
        )
    ],
    _KEYS,
)


@operator
class _MaskedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, gate, scale, *selection):
        q, k, v = (x.contiguous() for x in (q, k, v))
        gate = None if gate is None else gate.contiguous()
        selection = Selection(*selection)
        y = q.new_empty(*q.shape[:3], v.shape[-1])
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward_tuned[_by_query(q)](
            q, k, v, selection.bits, selection.keys, gate, y, lse, scale, **_sizes(q, k, v, selection)
        )
        ctx.save_for_backward(q, k, v, gate, y, lse, *selection)
        ctx.scale = scale
        ctx.mark_non_differentiable(lse)
        return y, lse

    @staticmethod
    @first_order
    def backward(ctx, dy, _dlse):
        q, k, v, gate, y, lse, *selection = ctx.saved_tensors
        selection = Selection(*selection)
        dy, delta = dy.contiguous(), torch.empty_like(lse)
        do, dgate = (dy, None) if gate is None else (torch.empty_like(dy), torch.empty_like(gate))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        sizes = _sizes(q, k, v, selection)
        query_gradient_tuned[_by_query(q)](
            q,
            k,
            v,
            selection.bits,
            selection.keys,
            gate,
            y,
            lse,
            dy,
            do,
            dgate,
            delta,
            dq,
            ctx.scale,
            **sizes,
        )
        blocks = selection.queries.shape[1]
        key_gradients_tuned[(blocks, k.shape[2], k.shape[0])](
            q, k, v, selection.bits, selection.queries, lse, do, delta, dk, dv, ctx.scale,
            BLOCKS=blocks, BS=BLOCK.value, **sizes,
        )  # fmt: skip
        return dq, dk, dv, dgate, None, None, None, None


def _by_query(q: Tensor):
    return lambda tile: (triton.cdiv(q.shape[1], tile["BQ"]), q.shape[2], q.shape[0])


def _sizes(q: Tensor, k: Tensor, v: Tensor, selection: Selection) -> dict[str, int]:
    """Sizes that all kernels share, by their names at the top of this file."""
    heads = {"G": q.shape[2] // k.shape[2], "HKV": k.shape[2]}
    widths = {"K": q.shape[3], "V": v.shape[3], "BK": padded(q.shape[3]), "BV": padded(v.shape[3])}
    return {"Tq": q.shape[1], "Tk": k.shape[1], "W": selection.bits.shape[2], **heads, **widths}


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, selection: Selection, *, gate_logits: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.sparse_attention` on a GPU over tiles of keys.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], gate_logits [B, Tq, H, V] or None -> [B, Tq, H, V] in q's
    dtype, computed in fp32, and log Σ exp of every query and head, fp32 [B, Tq, H].
    """
    return _MaskedAttention(q, k, v, gate_logits, scale, *selection, returns=(True, True))
