"""The indexer's loss by query: sums of exponentials, then the loss and the gradients of what belongs to queries.

    p_ts = mean_h e^(scale·q_th·k_s − lse_th)          π_ts = e^(τ·I_ts − log Σ_s e^(τ·I_ts))
    loss = Σ_t weight_t·Σ_s p_ts·(log p_ts − log π_ts),   weight_t = 1/(T_n·N) in sequence n of N

Sizes of all kernels of this operation:

    T, N       tokens of a sequence, places of a query's list or words of its bits
    G, HKV, K  query heads a KV head, KV heads, width of attention; BG, BK: of tiles
    HI, DI     index heads and their width; BH, BD: of tiles
    BQ, BS     queries and keys of a tile
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.indexer_kl.triton_tiles import (
    attention_logits,
    attention_mean,
    attention_queries,
    index_gradients,
    index_scores,
    key_range,
    seen_keys,
)
from kernels.ops.lightning_topk.triton_scores import heads_of, index_queries
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tiles import load_rows, running_max, store_rows
from kernels.triton_common.tuning import Tuned


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


_TILES = [
    triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
    for size, warps, stages in ((64, 4, 2), (64, 8, 2), (128, 8, 2), (32, 4, 2), (64, 4, 1))
]
attention_sums_tuned = Tuned(_attention_sums, _TILES, ["G", "K", "KEYS"])
queries_tuned = Tuned(_queries, _TILES, ["G", "K", "HI", "DI", "KEYS", "LEARNS", "SCORES"])
