"""A tile of the indexer's loss: BQ queries and BS keys, a block of the sequence, masked or not, or those of one list.

KEYS, a constant of all kernels, says which keys a query sees: "all" up to its own, those of a "list", which is read key
by key, or those that are not "masked" by bits (`Selection`).

Heads lie in rows (query, head) of one product. Tokens are rows of the axis of B·T, so that a query and the key
at its place have the same number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.lightning_topk.triton_scores import heads_of, index_activations, over_heads
from kernels.ops.sparse_attention.triton_selection import chosen_keys, key_span
from kernels.triton_common.tiles import load_rows


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
