"""The indexer's loss by key: the gradient of the index keys. Programs own a block of them and a part of its queries."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.indexer_kl.triton_tiles import attention_mean, index_gradients, index_scores
from kernels.ops.lightning_topk.triton_scores import index_queries
from kernels.ops.sparse_attention.triton_selection import chosen_keys
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


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
def scale_by(x, factor, out, SIZE, BLOCK: tl.constexpr):
    """Multiply: out [SIZE] = factor·x [SIZE], in out's dtype; factor [] is one number on the device."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(x + place, mask=place < SIZE, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(out + place, scaled.to(out.dtype.element_ty), mask=place < SIZE)


keys_tuned = Tuned(
    _keys,
    [
        triton.Config({}, num_warps=warps, num_stages=stages)
        for warps, stages in ((4, 2), (8, 2), (8, 1), (4, 1))
    ],
    ["G", "K", "HI", "DI", "KEYS", "SCORES"],
)
