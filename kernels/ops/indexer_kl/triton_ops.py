"""The indexer's loss and its gradients without a matrix of scores.

    p_ts = mean_h e^(scale·q_th·k_s − lse_th)          π_ts = e^(τ·I_ts − log Σ_s e^(τ·I_ts))
    loss = Σ_t weight_t·Σ_s p_ts·(log p_ts − log π_ts),   weight_t = 1/(T_n·N) in sequence n of N

    attention's sums   log Σ exp of every query and head, as in attention's forward
    by query           p from those sums, one head after another; the indexer's own log Σ exp by a first pass over
                       its scores; then loss, d_q, d_w and, a part a program, d_bias and d_τ
    by key             p and the scores again for d_k: a program owns a block of keys, and goes over the queries
                       from its first key on or, given indices, over those whose lists name one of the block

The target p is needed for the value and for every gradient, so that all are made in the forward pass, as in the torch
form; the backward multiplies them by the loss's own gradient. Nothing is added atomically. A program has a block of
queries and goes over tiles of keys, of which it masks those that indices leave out; where lists are short beside the
sequence (`masks`), a query is a program that gathers its list. Index queries and keys in fp16 become fp32:
derivatives with respect to a pair's score are below fp16's range.

Sizes of all kernels:

    T, N       tokens of a sequence, places of a query's list or words of its bits
    G, HKV, K  query heads a KV head, KV heads, width of attention; BG, BK: of tiles
    HI, DI     index heads and their width; BH, BD: of tiles
    BQ, BS     queries and keys of a tile
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.lightning_topk.triton_ops import (
    MOST_ROWS,
    alike,
    heads_of,
    index_activations,
    index_queries,
    index_sizes,
    over_heads,
    queries_a_program,
)
from kernels.ops.sparse_attention.select import BLOCK, selectors
from kernels.ops.sparse_attention.triton_masked import Selection, chosen_keys, key_span, masks, selection_of
from kernels.packing import boundaries
from kernels.triton_common import chunk_bounds, chunk_table, padded, sum_rows
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, running_max, store_rows
from kernels.triton_common.tuning import Tuned

# A tile: BQ queries and BS keys, a block of the sequence, masked or not, or those of one list.
#
# KEYS, a constant of all kernels, says which keys a query sees: "all" up to its own, those of a "list", which is read
# key by key, or those that are not "masked" by bits (`Selection`).
#
# Heads lie in rows (query, head) of one product. Tokens are rows of the axis of B·T, so that a query and the key at
# its place have the same number.


@triton.jit
def seen_keys(indices, query, exists, start, stop, T, N, BS: tl.constexpr, KEYS: tl.constexpr):
    """The next BS keys of one query's list or of the axis.

    query int64 [BQ] on the axis of B·T, exists bool [BQ]: the queries, one of them where KEYS is "list"; indices: lists
    [B, T, N], or bits [B, T, N] where KEYS is "masked"; start: a place of the list, of the sequence (masked) or of the
    axis (all). Returns key int64 [BS], their rows of the axis; is_key bool [BS]; visible bool [BQ, BS], which each
    query sees.
    """
    place = start + tl.arange(0, BS)
    if KEYS == "list":
        index = tl.load(indices + query[:, None] * N + place[None], mask=(place < N)[None], other=-1)
        visible = exists[:, None] & (index >= 0)
        first = query // T * T
        key = tl.reshape(tl.maximum(index, 0).to(tl.int64) + first[:, None], (BS,))
        is_key = tl.reshape(visible, (BS,))
    elif KEYS == "masked":
        # queries of a tile are of one sequence of the batch
        key, is_key = tl.min(query, axis=0) // T * T + place, place < T
        visible = chosen_keys(indices, query, exists, start, N, BS)
    else:
        key, is_key = place, place < stop
        # s ≤ t
        visible = exists[:, None] & (place[None] <= query[:, None])
    return key, is_key, visible


@triton.jit
def key_range(ends, query, exists, begin, stop, N, BS: tl.constexpr, KEYS: tl.constexpr):
    """Where `seen_keys` starts and ends: places of a list, of the sequence, or keys of the axis from `begin` on."""
    if KEYS == "list":
        first, last = 0, N
    elif KEYS == "masked":
        first, last = key_span(ends, query, exists, BS)
    else:
        first, last = begin, stop
    return first, last


@triton.jit
def attention_queries(
    q, query, exists, part, G, HKV, K, BQ: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr
):
    """Queries [BQ·BG, BK] of up to BG heads that share a KV head; that head, the rows of [·, H], and which exist.

    part counts the tiles of BG heads: those of the first KV head, then of the next.
    """
    tiles = tl.cdiv(G, BG)
    kv_head = part // tiles
    offset = part % tiles * BG
    row, is_row = heads_of(query, exists, kv_head * G + offset, HKV * G, G - offset, BQ, BG)
    return load_rows(q, row, is_row, K, BK), kv_head, row, is_row


@triton.jit
def attention_logits(
    q_tile, k, kv_head, key, is_key, visible, scale, HKV, K,
    BQ: tl.constexpr, BG: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Logits scale·q_th·k_s of rows (query, head) and keys, [BQ·BG, BS]; −∞ where not visible."""
    k_tile = load_rows(k, key * HKV + kv_head, is_key, K, BK)
    logits = tl.reshape(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale, (BQ, BG, BS))
    return tl.reshape(tl.where(visible[:, None, :], logits, float("-inf")), (BQ * BG, BS))


@triton.jit
def attention_mean(
    q, k, lse, query, exists, key, is_key, visible, scale, G, HKV, K,
    BQ: tl.constexpr, BG: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """p_ts [BQ, BS] in fp32: the attention that the keys get, averaged over the heads.

    in         q [B·T, H, K], k [B·T, HKV, K]; lse [B·T, H], log Σ_s e^(scale·q_th·k_s) of every query and head
    place      query [BQ] and whether it exists; key [BS] and is_key; visible [BQ, BS]: as of `seen_keys`
    sizes      scale; G query heads a KV head; HKV KV heads; K width
    constants  BQ queries, BG heads and BS keys of a tile; BK ≥ K
    """
    p = tl.zeros((BQ, BS), tl.float32)
    for part in range(HKV * tl.cdiv(G, BG)):
        q_tile, kv_head, row, is_row = attention_queries(q, query, exists, part, G, HKV, K, BQ, BG, BK)
        logits = attention_logits(q_tile, k, kv_head, key, is_key, visible, scale, HKV, K, BQ, BG, BS, BK)
        log_total = tl.load(lse + row, mask=is_row, other=float("inf"))
        # p_ts = Σ_h e^(a_th,s − lse_th)/H
        p += over_heads(tl.exp(logits - log_total[:, None]), BQ, BG)
    return p / (G * HKV)


@triton.jit
def index_gradients(
    active, w_rows, scores, p, visible, log_total, weight, tau,
    BQ: tl.constexpr, BH: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """The loss's derivatives: by τ·I of each pair [BQ, BS]; by I for each head, and by its logits, [BQ·BH, BS]."""
    # π_ts = e^(τ·I_ts − log Σ_s e^(τ·I_ts))
    pi = tl.exp(tl.where(visible, tau * scores - log_total[:, None], float("-inf")))
    # ∂loss/∂(τI) = weight_t·(π_ts − p_ts)
    d_scaled = (pi - p) * weight[:, None]
    # ∂loss/∂I = τ·∂loss/∂(τI), the same for all heads
    d_score = tl.broadcast_to((d_scaled * tau)[:, None, :], (BQ, BH, d_scaled.shape[1]))
    d_score = tl.reshape(d_score, (BQ * BH, d_scaled.shape[1]))
    if SCORES == "sigmoid":
        # ∂loss/∂z = ∂loss/∂I·w·σ(z)·(1 − σ(z)) of a sigmoid; of a ReLU ∂loss/∂I·w where z > 0
        d_logit = d_score * active * (1 - active) * w_rows[:, None]
    else:
        d_logit = tl.where(active <= 0, 0.0, d_score * w_rows[:, None])
    return d_scaled, d_score, d_logit


@triton.jit
def index_scores(
    q_rows, k_tile, w_rows, bias_rows, scale, BQ: tl.constexpr, BH: tl.constexpr, SCORES: tl.constexpr
):
    """The heads' activations σ(z_tj,s) [BQ·BH, BS], and I_ts = Σ_j w_tj·σ(z_tj,s) [BQ, BS]."""
    active = index_activations(q_rows, k_tile, bias_rows, scale, SCORES)
    return active, over_heads(active * w_rows[:, None], BQ, BH)


# By query: sums of exponentials, then the loss and the gradients of what belongs to queries.


@triton.jit
def _more_exponentials(logits, largest, total):
    """Add logits [R, BS] to Σ e^logit, which is held as its largest logit m and Σ e^(logit − m)."""
    largest, centre, shrink = running_max(largest, logits)
    return largest, total * shrink + tl.sum(tl.exp(logits - centre[:, None]), axis=1)


@triton.jit
def _log_sum(largest, total):
    """log Σ e^logit; 0 for nothing, where every logit is −∞ and so every share is 0."""
    return tl.where(total == 0, 0.0, largest + tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def _attention_sums(
    q, k, indices, ends, lse, table, cu, scale, T, N, G, HKV, K, KEYS: tl.constexpr,
    BQ: tl.constexpr, BG: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """lse_th = log Σ_s e^(scale·q_th·k_s) over the keys that t sees, of BQ queries and up to BG heads of one KV head.

    in         q [B·T, H, K], k [B·T, HKV, K]; indices and ends as in `_queries`
    out        lse [B·T, H] in fp32
    layout     table, cu of chunks of BQ queries
    sizes      scale; T tokens a sequence; N places of a list, or words of bits; G query heads a KV head; HKV KV heads;
               K width
    constants  KEYS: which a query sees; BQ, BG; BS keys of a tile; BK ≥ K
    """
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BQ)
    if sequence >= 0:
        query = first + tl.arange(0, BQ)
        exists = query < end
        stop = tl.minimum(first + BQ, end)
        q_tile, kv_head, row, is_row = attention_queries(
            q, query, exists, tl.program_id(1), G, HKV, K, BQ, BG, BK
        )
        largest = tl.full((BQ * BG,), float("-inf"), tl.float32)
        total = tl.zeros((BQ * BG,), tl.float32)
        start_at, stop_at = key_range(ends, query, exists, begin, stop, N, BS, KEYS)
        for start in range(start_at, stop_at, BS):
            key, is_key, visible = seen_keys(indices, query, exists, start, stop, T, N, BS, KEYS)
            # a_th,s = scale·q_th·k_s
            logits = attention_logits(q_tile, k, kv_head, key, is_key, visible, scale, HKV, K, BQ, BG, BS, BK)
            largest, total = _more_exponentials(logits, largest, total)
        # lse_th = log Σ_s e^(a_th,s)
        tl.store(lse + row, _log_sum(largest, total), mask=is_row)


@triton.jit
def _index_sums(
    q_rows, w_rows, bias_rows, k_idx, indices, query, exists, start_at, stop_at, stop, tau, scale, T, N, DI,
    KEYS: tl.constexpr, SCORES: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """log Σ_s e^(τ·I_ts) over the keys that t sees, [BQ].

    in         of the queries: q_rows [BQ·BH, BD], w_rows, bias_rows [BQ·BH], as `index_queries` loads them; query,
               exists [BQ]: their tokens, and which of them there are
               of the keys: k_idx [B·T, DI]; indices as in `_queries`
               tau, scale: of I and of the products in it
    range      start_at, stop_at: of `key_range`; stop: the key after the last query
    sizes      T, N, DI, as at the top of this file
    constants  KEYS: which a query sees; SCORES: the indexer's activation; tiles: BQ, BH, BS, BD
    """
    largest, total = tl.full((BQ,), float("-inf"), tl.float32), tl.zeros((BQ,), tl.float32)
    for start in range(start_at, stop_at, BS):
        key, is_key, visible = seen_keys(indices, query, exists, start, stop, T, N, BS, KEYS)
        k_tile = load_rows(k_idx, key, is_key, DI, BD)
        # τ·I_ts
        _, scores = index_scores(q_rows, k_tile, w_rows, bias_rows, scale, BQ, BH, SCORES)
        logits = tl.where(visible, tau * scores, float("-inf"))
        largest, total = _more_exponentials(logits, largest, total)
    return _log_sum(largest, total)


@triton.jit
def _queries(
    q, k, q_idx, k_idx, w_idx, bias, tau, indices, ends, lse, index_lse, weights, parts, dq, dw, table, cu,
    scale, index_scale, T, N, G, HKV, K, HI, DI, SEQUENCES,
    KEYS: tl.constexpr, LEARNS: tl.constexpr, SCORES: tl.constexpr,
    BQ: tl.constexpr, BG: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The loss and the gradients of the index queries, their weights, the bias and τ.

    The last queries come first: they see the most keys.

    in      attention: q, k, lse [B·T, H]; indexer: q_idx, k_idx, w_idx, bias, tau; indices: lists [B·T, N] or None, or
            bits [B·T, N], with their ends, the keys of `Selection`
    out     index_lse [B·T] = log Σ_s e^(τ·I_ts) and weights [B·T], for the keys' gradient; dq, dw like q_idx, w_idx;
            parts [programs, 2 + HI]: each program's loss, d_τ and d_bias
    layout  table, cu of chunks of BQ queries; SEQUENCES: N of the loss
    """
    chunk = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence, begin, end, first = chunk_bounds(table, cu, chunk, BQ)
    if sequence >= 0:
        query = first + tl.arange(0, BQ)
        exists = query < end
        stop = tl.minimum(first + BQ, end)
        start_at, stop_at = key_range(ends, query, exists, begin, stop, N, BS, KEYS)
        tau_value = tl.load(tau).to(tl.float32)
        q_rows, w_rows, bias_rows = index_queries(q_idx, w_idx, bias, query, exists, HI, DI, BQ, BH, BD)
        # log Σ_s e^(τ·I_ts)
        log_total = _index_sums(
            q_rows, w_rows, bias_rows, k_idx, indices, query, exists, start_at, stop_at, stop, tau_value,
            index_scale, T, N, DI, KEYS, SCORES, BQ, BH, BS, BD,
        )  # fmt: skip
        length = (end - begin).to(tl.float32)
        # every sequence counts the same, and so does every query of a sequence
        weight = tl.where(exists, 1 / (length * SEQUENCES), 0.0)
        tl.store(index_lse + query, log_total, mask=exists)
        tl.store(weights + query, weight, mask=exists)
        loss, d_tau = tl.zeros((BQ,), tl.float32), tl.zeros((BQ,), tl.float32)
        d_w, d_bias = tl.zeros((BQ * BH,), tl.float32), tl.zeros((BQ * BH,), tl.float32)
        d_q = tl.zeros((BQ * BH, BD), tl.float32)
        for start in range(start_at, stop_at, BS):
            key, is_key, visible = seen_keys(indices, query, exists, start, stop, T, N, BS, KEYS)
            # p_ts = mean_h e^(a_th,s − lse_th)
            p = attention_mean(
                q, k, lse, query, exists, key, is_key, visible, scale, G, HKV, K, BQ, BG, BS, BK
            )
            k_tile = load_rows(k_idx, key, is_key, DI, BD)
            # I_ts = Σ_j w_tj·σ(z_tj,s)
            active, scores = index_scores(q_rows, k_tile, w_rows, bias_rows, index_scale, BQ, BH, SCORES)
            # loss_t = Σ_s p_ts·(log p_ts − (τ·I_ts − log Σ_s e^(τ·I_ts)))
            absent = p == 0
            log_ratio = tl.log(tl.where(absent, 1.0, p)) - (tau_value * scores - log_total[:, None])
            loss += tl.sum(tl.where(absent, 0.0, p * log_ratio), axis=1)
            if LEARNS:
                # ∂loss/∂(τI), ∂loss/∂I and ∂loss/∂z
                d_scaled, d_score, d_logit = index_gradients(
                    active, w_rows, scores, p, visible, log_total, weight, tau_value, BQ, BH, SCORES
                )
                # dτ = Σ_ts ∂loss/∂(τI)·I_ts,   dw_tj = Σ_s ∂loss/∂I·σ(z),   db_j = Σ_ts ∂loss/∂z
                d_tau += tl.sum(d_scaled * scores, axis=1)
                d_w += tl.sum(d_score * active, axis=1)
                d_bias += tl.sum(d_logit, axis=1)
                # dq_tj = Σ_s ∂loss/∂z·k_s/√d_I
                d_q += tl.dot(d_logit.to(k_tile.dtype), k_tile, input_precision="ieee")
        part = parts + tl.program_id(0).to(tl.int64) * (HI + 2)
        tl.store(part, tl.sum(loss * weight, axis=0))
        if LEARNS:
            tl.store(part + 1, tl.sum(d_tau, axis=0))
            head = tl.arange(0, BH)
            tl.store(part + 2 + head, tl.sum(tl.reshape(d_bias, (BQ, BH)), axis=0), mask=head < HI)
            row, is_row = heads_of(query, exists, 0, HI, HI, BQ, BH)
            tl.store(dw + row, d_w, mask=is_row)
            store_rows(dq, row, is_row, d_q * index_scale, DI, BD)


# Of eight warps: a thread of four has no room for the gradients of 64 keys, and spills.
_TILES = [
    triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
    for size, warps, stages in ((64, 8, 2), (32, 8, 2), (32, 4, 2), (64, 8, 1))
]
attention_sums_tuned = Tuned(_attention_sums, _TILES, ["G", "K", "KEYS"])
queries_tuned = Tuned(_queries, _TILES, ["G", "K", "HI", "DI", "KEYS", "LEARNS", "SCORES"])


# By key: the gradient of the index keys. Programs own a block of them and a part of its queries.


@triton.jit
def _block_of_keys(table, cu, T, BLOCKS, BS: tl.constexpr, KEYS: tl.constexpr):
    """The program's keys [BS] and where they end; where all are seen these are a chunk of a sequence, or none."""
    block = tl.program_id(0).to(tl.int64)
    if KEYS != "all":
        first = block // BLOCKS * T + block % BLOCKS * BS
        end = (block // BLOCKS + 1) * T
    else:
        sequence, _, end, first = chunk_bounds(table, cu, block, BS)
        end = tl.where(sequence >= 0, end, first)
    return first + tl.arange(0, BS), end


@triton.jit
def _keys(
    q, k, q_idx, k_idx, w_idx, bias, tau, lse, index_lse, weights, parts, table, cu,
    lists_first, lists_query, lists_bits, scale, index_scale,
    T, N, BLOCKS, TOKENS, G, HKV, K, HI, DI, KEYS: tl.constexpr, SCORES: tl.constexpr,
    BQ: tl.constexpr, BG: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dk_s = Σ_tj ∂loss/∂z_tj,s · q_tj/√d_I over the queries that see key s.

    in      attention: q, k, lse; indexer: q_idx, k_idx, w_idx, bias, tau; index_lse, weights of the kernel by query
    out     parts [SPLITS, B·T, DI] in fp32, whose sum is dk: of an equal share of the block's queries each
    layout  KEYS "all": table, cu of chunks of BS keys; "list": lists_first, lists_query, lists_bits of `Selectors`;
            "masked": lists_first and lists_bits [B·T, N], the queries and bits of `Selection`
    """
    key, key_end = _block_of_keys(table, cu, T, BLOCKS, BS, KEYS)
    is_key = key < key_end
    first = tl.min(key, axis=0)
    k_tile = load_rows(k_idx, key, is_key, DI, BD)
    tau_value = tl.load(tau).to(tl.float32)
    gradient = tl.zeros((BS, BD), tl.float32)
    axis = tl.program_id(0).to(tl.int64) // BLOCKS * T  # of the sequence's first token
    if KEYS == "list":
        begin = tl.load(lists_first + tl.program_id(0))
        end = tl.load(lists_first + tl.program_id(0) + 1)
    elif KEYS == "masked":
        begin = axis + tl.load(lists_first + tl.program_id(0) * 2)
        end = axis + tl.load(lists_first + tl.program_id(0) * 2 + 1)
    else:
        begin, end = first, key_end
    # the first blocks have the most queries: programs that share them end at nearly the same time
    span = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), tl.num_programs(1)), BQ) * BQ
    begin += tl.program_id(1) * span
    end = tl.minimum(begin + span, end)
    for start in range(begin, end, BQ):
        place = start + tl.arange(0, BQ)
        exists = place < end
        if KEYS == "list":
            # the queries whose lists name a key of the block; bit s says which
            query = tl.load(lists_query + place, mask=exists, other=0)
            bits = tl.load(lists_bits + place, mask=exists, other=0)
            visible = (bits[:, None] >> tl.arange(0, BS).to(tl.int64)[None]) & 1 == 1
        elif KEYS == "masked":
            query = place
            visible = chosen_keys(lists_bits, query, exists, tl.program_id(0) % BLOCKS * BS, N, BS)
        else:
            # the queries from the block's first key on
            query = place
            visible = exists[:, None] & is_key[None] & (key[None] <= query[:, None])
        # p_ts, and I_ts again
        p = attention_mean(q, k, lse, query, exists, key, is_key, visible, scale, G, HKV, K, BQ, BG, BS, BK)
        q_rows, w_rows, bias_rows = index_queries(q_idx, w_idx, bias, query, exists, HI, DI, BQ, BH, BD)
        active, scores = index_scores(q_rows, k_tile, w_rows, bias_rows, index_scale, BQ, BH, SCORES)
        # ∂loss/∂z_tj,s
        log_total = tl.load(index_lse + query, mask=exists, other=0.0)
        weight = tl.load(weights + query, mask=exists, other=0.0)
        _, _, d_logit = index_gradients(
            active, w_rows, scores, p, visible, log_total, weight, tau_value, BQ, BH, SCORES
        )
        # dk_s = Σ_tj ∂loss/∂z_tj,s·q_tj/√d_I
        gradient += tl.dot(tl.trans(d_logit.to(q_rows.dtype)), q_rows, input_precision="ieee")
    part = parts + tl.program_id(1).to(tl.int64) * TOKENS * DI
    store_rows(part, key, is_key, gradient * index_scale, DI, BD)


@triton.jit
def _scale(d_q, d_k, d_w, numbers, factor, dq, dk, dw, dbias, dtau, Q, K, W, HI, BLOCK: tl.constexpr):
    """dq, dk, dw, dbias and dtau: the fp32 gradients times factor [], a number on the device.

    numbers: d_τ and d_bias after the loss, as in a row of `parts`. Each has its range of the programs' places.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(factor).to(tl.float32)
    _store_scaled(d_q, number, dq, place, Q)
    _store_scaled(d_k, number, dk, place - Q, K)
    _store_scaled(d_w, number, dw, place - Q - K, W)
    _store_scaled(numbers + 2, number, dbias, place - Q - K - W, HI)
    _store_scaled(numbers + 1, number, dtau, place - Q - K - W - HI, 1)


@triton.jit
def _store_scaled(x, factor, out, place, SIZE):
    """out [SIZE] = factor·x [SIZE] at these places, those outside left out."""
    inside = (place >= 0) & (place < SIZE)
    tl.store(out + place, (tl.load(x + place, mask=inside) * factor).to(out.dtype.element_ty), mask=inside)


keys_tuned = Tuned(
    _keys,
    [triton.Config({}, num_warps=warps, num_stages=stages) for warps, stages in ((8, 2), (8, 1))],
    ["G", "K", "HI", "DI", "KEYS", "SCORES"],
)


# The call: its launches, and gradients that wait for the backward.

SPLITS = 4
"""Programs that share a block of keys: one alone goes over all queries for the first keys, long after others end."""
PARTS, MANY = 32, 1024
"""The parts of more than so many programs are added to PARTS rows first; then rows are added, by one program."""


class _Call(NamedTuple):
    """The arguments of one call, contiguous, as all its kernels read them."""

    q: Tensor
    k: Tensor
    indexer: tuple[Tensor, ...]  # q_idx, k_idx, w_idx, bias, tau
    indices: Tensor | None
    selection: Selection | None
    scale: float
    scores: str
    cu_seqlens: Tensor | None

    @property
    def keys(self) -> str:
        """Which keys a query sees: KEYS of the kernels."""
        return (
            "all"
            if self.indices is None and self.selection is None
            else "list"
            if self.selection is None
            else "masked"
        )

    @property
    def index_scale(self) -> float:
        """1/√d_I."""
        return self.indexer[0].shape[-1] ** -0.5


class _Sums(NamedTuple):
    """Results of the kernels by query that the kernel by key reads, fp32.

    lse [B, T, H]: log Σ exp of attention; index_lse [B, T]: of τ·I; weights [B, T]: weight_t
    """

    lse: Tensor
    index_lse: Tensor
    weights: Tensor


@operator
class _IndexerKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q_idx,
        k_idx,
        w_idx,
        bias,
        tau,
        q,
        k,
        indices,
        bits,
        keys,
        queries,
        lse,
        scale,
        scores,
        cu_seqlens,
        learns,
    ):
        selection = None if bits is None else Selection(bits, keys, queries)
        indexer = (*alike(*_fp16_to_fp32(q_idx, k_idx)), w_idx.contiguous(), bias.contiguous(), tau)
        indices = None if indices is None else indices.contiguous()
        call = _Call(q.contiguous(), k.contiguous(), indexer, indices, selection, scale, scores, cu_seqlens)
        loss, gradients = _loss_and_gradients(call, lse, learns)
        inputs = q_idx, k_idx, w_idx, bias, tau
        ctx.save_for_backward(*gradients, *(x.new_empty(0) for x in inputs))
        ctx.shapes = [list(x.shape) for x in inputs]
        return loss

    @staticmethod
    @first_order
    def backward(ctx, grad):
        gradients, likes = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        scaled = [
            torch.empty(shape, dtype=like.dtype, device=like.device)
            for shape, like in zip(ctx.shapes, likes, strict=True)
        ]
        sizes = {name: x.numel() for name, x in zip(("Q", "K", "W", "HI"), scaled, strict=False)}
        programs = triton.cdiv(sum(sizes.values()) + 1, 1024)
        _scale[(programs,)](*gradients, grad, *scaled, **sizes, BLOCK=1024)
        return *scaled, *(None,) * 11


def _fp16_to_fp32(*tensors: Tensor) -> list[Tensor]:
    return [x.to(torch.float32) if x.dtype == torch.float16 else x for x in tensors]


def _tiles(call: _Call, queries: int) -> dict[str, int]:
    """Sizes of the kernels with so many queries a tile, named as at this page's head.

    Where that is one, its heads alone have to fill a product's rows.
    """
    q, k, q_idx = call.q, call.k, call.indexer[0]
    group, width = q.shape[2] // k.shape[2], q.shape[3]
    sizes = index_sizes(q_idx)
    sizes["BQ"] = queries
    if queries == 1:
        sizes["BH"] = max(16, sizes["BH"])
    fewest = triton.cdiv(16, sizes["BQ"])
    heads = min(triton.next_power_of_2(group), max(1, MOST_ROWS // sizes["BQ"]))
    return {
        **sizes,
        "G": group,
        "HKV": k.shape[2],
        "K": width,
        "BK": padded(width),
        "BG": max(fewest, heads),
        "KEYS": call.keys,
    }


def _loss_and_gradients(call: _Call, lse: Tensor | None, learns: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss [] and, in fp32, its gradients for q_idx, k_idx and w_idx, and [2 + HI] the loss, d_τ and d_bias.

    Gradients are undefined unless `learns`. lse [B, T, H]: attention's log Σ exp, where it has been computed.
    """
    q, k, q_idx = call.q, call.k, call.indexer[0]
    w_idx = call.indexer[2]
    sizes = _tiles(call, 1 if call.keys == "list" else queries_a_program(q_idx.shape[2]))
    cu, table = boundaries(q, call.cu_seqlens), chunk_table(q, call.cu_seqlens, sizes["BQ"])
    fp32 = {"dtype": torch.float32, "device": q.device}
    dq, dw = (torch.empty(x.shape if learns else 0, **fp32) for x in (q_idx, w_idx))
    if call.selection is not None:
        chosen, ends = call.selection.bits, call.selection.keys
    else:
        chosen, ends = call.indices, None
    lists = {"T": q.shape[1], "N": 0 if chosen is None else chosen.shape[2]}
    if lse is None:
        lse = torch.empty(q.shape[:3], **fp32)
        of_attention = {name: sizes[name] for name in ("G", "HKV", "K", "BQ", "BG", "BK", "KEYS")}
        heads = sizes["HKV"] * triton.cdiv(sizes["G"], sizes["BG"])
        attention_sums_tuned[(len(table), heads)](
            q, k, chosen, ends, lse, table, cu, call.scale, **lists, **of_attention
        )
    sums = _Sums(lse, *(torch.empty(q.shape[:2], **fp32) for _ in range(2)))
    many = len(table) > MANY
    rows = triton.cdiv(len(table), PARTS) * PARTS if many else len(table)
    # rows without a chunk: of packed sequences, and those that fill up
    make = torch.empty if rows == len(table) and call.cu_seqlens is None else torch.zeros
    parts = make(rows, sizes["HI"] + 2, **fp32)
    queries_tuned[(len(table),)](
        q, k, *call.indexer, chosen, ends, *sums, parts, dq, dw, table, cu, call.scale, call.index_scale,
        **lists, **sizes, SEQUENCES=len(cu) - 1, LEARNS=learns, SCORES=call.scores,
    )  # fmt: skip
    if many:
        parts = sum_rows(parts.view(-1, PARTS * parts.shape[1]), torch.float32).view(PARTS, -1)
    total = sum_rows(parts, torch.float32)
    dk = _key_gradient(call, sums) if learns else dq
    return total[0].clone(), [dq, dk, dw, total]


def _key_gradient(call: _Call, sums: _Sums) -> Tensor:
    """dk [B, T, DI] in fp32."""
    q, k, k_idx = call.q, call.k, call.indexer[1]
    blocks = triton.cdiv(q.shape[1], BLOCK)
    table, cu, lists, programs, words = None, None, (None, None, None), q.shape[0] * blocks, 0
    if call.selection is not None:
        lists, words = (call.selection.queries, None, call.selection.bits), call.selection.bits.shape[2]
    elif call.indices is not None:
        inverse = selectors(call.indices, q.shape[1])
        lists = inverse.first, inverse.query, inverse.bits
    else:
        table, cu = chunk_table(q, call.cu_seqlens, BLOCK), boundaries(q, call.cu_seqlens)
        programs = len(table)
    parts = torch.empty(SPLITS, *k_idx.shape, dtype=torch.float32, device=q.device)
    keys_tuned[(programs, SPLITS)](
        q, k, *call.indexer, *sums, parts, table, cu, *lists, call.scale, call.index_scale,
        T=q.shape[1], N=words, BLOCKS=blocks, TOKENS=q.shape[0] * q.shape[1], BS=BLOCK, SCORES=call.scores,
        **_tiles(call, _queries_of_keys(call)),
    )  # fmt: skip
    return sum_rows(parts, torch.float32)


def _queries_of_keys(call: _Call) -> int:
    """Queries of a tile of the kernel by key: their index heads fill a product's rows.

    Fewer where heads are wide or all keys are seen, as threads would have no room for more.
    """
    heads, width = call.indexer[0].shape[2:]
    rows = 2 * MOST_ROWS if width <= 64 and call.keys != "all" else MOST_ROWS
    return max(1, min(64, rows // triton.next_power_of_2(heads)))


def indexer_kl_triton(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    selection: Selection | None = None,
    lse: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.indexer_kl` on a GPU; gradients only where autograd needs them.

    q [B, T, H, K], k [B, T, Hkv, K], q_idx [B, T, HI, DI], k_idx [B, T, DI], w_idx [B, T, HI], bias [HI], tau [],
    indices [B, T, n] or None -> [] in fp32, in nats. From an attention to the same keys may come the selection that
    indices make and lse [B, T, H], log Σ exp of every query and head.
    """
    indexer = q_idx, k_idx, w_idx, bias, tau
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if (
        selection is None
        and indices is not None
        and masks(q.shape[2], k.shape[2], k.shape[1], indices.shape[2])
    ):
        selection = selection_of(indices, k.shape[1])
    inputs = (*indexer, q.detach(), k.detach(), indices, *(selection or (None, None, None)), lse)
    return _IndexerKL(*inputs, scale, scores, cu_seqlens, learns)
