"""Lightning top-k: score every key once, from the latest to the earliest, and keep the best seen so far."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.lightning_topk.triton_candidates import prune, take
from kernels.ops.lightning_topk.triton_scores import (
    index_activations,
    index_queries,
    over_heads,
    query_block,
    rank,
)
from kernels.triton_common.tiles import load_rows
from kernels.triton_common.tuning import Tuned

_HIGHEST = tl.constexpr(2**31 - 1)  # the rank of the query itself
_WHOLE = tl.constexpr(2.0**23)


@triton.jit
def _tile(
    q_rows, w_rows, bias_rows, inverse, k, key_begin, start, last, scale, DI,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """BS keys from `start`: their positions, scores [BQ, BS] and ranks [BQ, BS]."""
    key = start + tl.arange(0, BS)
    k_tile = load_rows(k, key_begin + key, key < last, DI, BD)
    active = index_activations(q_rows, k_tile, bias_rows, scale, SCORES)
    scores = over_heads(active * w_rows[:, None], BQ, BH)
    return key, scores, rank(scores, inverse, SCORES)


@triton.jit
def _joined(seen, mean, squares, scores, visible, HI):
    """Count, mean and squared distances from it of I/H^I, with those of a tile [BQ, BS] joined to them.

    Means of tiles are joined rather than squares summed, so that nothing large is subtracted from its like.
    """
    more = tl.sum(visible.to(tl.float32), axis=1)
    both = tl.maximum(seen + more, 1.0)
    share = tl.where(visible, scores / HI, 0.0)
    centre = tl.sum(share, axis=1) / tl.maximum(more, 1.0)
    away = tl.where(visible, share - centre[:, None], 0.0)
    gap = centre - mean
    squares += tl.sum(away * away, axis=1) + gap * gap * seen * more / both
    return seen + more, mean + gap * more / both, squares


@triton.jit
def _count_wanted(
    counts, query, exists, position, variance, base, least, most, beta, reference, K_MAX, RULE: tl.constexpr
):
    """How many keys each query keeps, itself included: of its own count, or of AdaptiveK's rule."""
    if RULE == "given":
        wanted = tl.load(counts + query, mask=exists, other=1).to(tl.int64)
    elif RULE == "none":
        wanted = tl.full(query.shape, 0, tl.int64) + base
    else:
        if RULE == "seed":
            soft = tl.log(1 + tl.exp(tl.minimum(variance, 20.0)))
            size = base * (1 + beta * tl.where(variance > 20.0, variance, soft))
        else:
            size = base * tl.sqrt(reference / tl.maximum(variance, 1e-30))
        size = tl.minimum(tl.maximum(size, least), most)
        wanted = ((size + _WHOLE) - _WHOLE).to(tl.int64)  # to the nearest, halves to even
    return tl.minimum(tl.minimum(tl.maximum(wanted, 1), K_MAX), position + 1).to(tl.int32)


@triton.jit
def _select(
    q, k, w, bias, counts, out, shelf, notes, table, cu, cu_keys, CHUNKS, scale, base, least, most, beta, reference,
    HI, DI, K_MAX, RULE: tl.constexpr, PACKED: tl.constexpr, SHELF: tl.constexpr, ROWS: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """out [B·Tq, K_MAX]: the chosen keys of each query, from the latest to the earliest, then −1.

    A program takes every so-manieth chunk of BQ queries and has shelves [BQ, 2, SHELF] and notes [2, BQ] of its own.
    """
    slot = tl.program_id(0)
    shelf += slot.to(tl.int64) * (BQ * 2 * SHELF)
    notes += slot * (2 * BQ)
    line = tl.arange(0, BQ)
    for chunk in range(slot, CHUNKS, tl.num_programs(0)):
        busy, query, exists, position, key_begin = query_block(table, cu, cu_keys, chunk, BQ)
        if busy:
            q_rows, w_rows, bias_rows = index_queries(q, w, bias, query, exists, HI, DI, BQ, BH, BD)
            total = tl.sum(tl.reshape(w_rows, (BQ, BH)), axis=1)
            inverse = 1 / tl.maximum(total, 1.1754944e-38)
            kept, floor = tl.zeros((BQ,), tl.int32), tl.full((BQ,), -1, tl.int32)
            seen, mean, squares = (
                tl.zeros((BQ,), tl.float32),
                tl.zeros((BQ,), tl.float32),
                tl.zeros((BQ,), tl.float32),
            )
            last = tl.max(tl.where(exists, position + 1, 0), axis=0)
            tiles = tl.cdiv(last, BS)
            for step in range(tiles):
                key, scores, ranked = _tile(
                    q_rows, w_rows, bias_rows, inverse, k, key_begin, (tiles - 1 - step) * BS, last, scale, DI,
                    BQ, BH, BS, BD, SCORES,
                )  # fmt: skip
                visible = exists[:, None] & (key[None] <= position[:, None])
                if (RULE == "seed") | (RULE == "inverse"):
                    seen, mean, squares = _joined(seen, mean, squares, scores, visible, HI)
                ranked = tl.where(key[None] == position[:, None], _HIGHEST, ranked)
                good = visible & (ranked > floor[:, None])
                place = kept[:, None] + tl.cumsum(good.to(tl.int32), axis=1, reverse=True) - 1
                cell = shelf + line[:, None] * (2 * SHELF) + place
                tl.store(cell, ranked, mask=good)
                tl.store(cell + SHELF, (key + tl.zeros_like(ranked)).to(tl.int32), mask=good)
                kept += tl.sum(good.to(tl.int32), axis=1)
                if tl.max(kept, axis=0) > SHELF - BS:
                    kept, floor = prune(shelf, notes, kept, K_MAX, BQ, SHELF, ROWS)
            wanted = _count_wanted(
                counts, query, exists, position, squares / tl.maximum(seen, 1.0), base, least, most, beta, reference,
                K_MAX, RULE,
            )  # fmt: skip
            first = key_begin if PACKED else key_begin * 0
            own = out + tl.min(query, axis=0) * K_MAX
            take(shelf, notes, kept, wanted, own, exists, first, K_MAX, BQ, SHELF, ROWS)


select_tuned = Tuned(
    _select,
    [
        triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 8, 2), (64, 8, 2), (128, 4, 2), (32, 4, 3))
    ],
    ["HI", "DI", "RULE", "SCORES"],
)
