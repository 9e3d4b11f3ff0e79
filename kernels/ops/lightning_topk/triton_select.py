"""Lightning top-k: every key is scored once, from the latest to the earliest; each query keeps its best so far.

    I_ts = Σ_j w_tj·σ(q_tj·k_s·scale + b_j)          S_t = {t} ∪ the k_t − 1 other s ≤ t of highest I_ts

Sizes:

    HI, DI    index heads and their width; BH, BD: of tiles
    BQ, BS    queries and keys of a tile
    CAPACITY  candidates that a query's buffer holds; ROWS: buffers pruned at a time
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.lightning_topk.triton_candidates import prune, write_best
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
    """The positions [BS] of the keys from `start` on, their scores [BQ, BS] and ranks [BQ, BS].

    in      q_rows [BQ·BH, BD], w_rows and bias_rows [BQ·BH]; inverse [BQ]: one over the weights' sum; k [T, DI]
    layout  key_begin: the sequence's first key; last: the first position that there is not
    """
    key = start + tl.arange(0, BS)
    k_tile = load_rows(k, key_begin + key, key < last, DI, BD)
    # I_ts = Σ_j w_tj·σ(z_tj,s)
    active = index_activations(q_rows, k_tile, bias_rows, scale, SCORES)
    scores = over_heads(active * w_rows[:, None], BQ, BH)
    return key, scores, rank(scores, inverse, SCORES)


@triton.jit
def _joined(seen, mean, squares, scores, visible, HI):
    """Count, mean and squared distances from the mean of I/H^I, joined with those of a tile [BQ, BS].

    Means of tiles are joined rather than squares summed, so that nothing large is subtracted from its like.
    """
    # n = n₁ + n₂, μ = μ₁ + (μ₂ − μ₁)·n₂/n, M = M₁ + M₂ + (μ₂ − μ₁)²·n₁·n₂/n
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
    """k_t: how many keys each query keeps, itself included, from `counts` or by AdaptiveK's rule.

    A variance that is NaN gives the most.
    """
    if RULE == "given":
        wanted = tl.load(counts + query, mask=exists, other=1).to(tl.int64)
    elif RULE == "none":
        wanted = tl.full(query.shape, 0, tl.int64) + base
    else:
        if RULE == "seed":
            # k = base·(1 + beta·softplus(v))
            soft = tl.log(1 + tl.exp(tl.minimum(variance, 20.0)))
            size = base * (1 + beta * tl.where(variance > 20.0, variance, soft))
        else:
            # k = base·√(reference/v)
            size = base * tl.sqrt(reference / tl.maximum(variance, 1e-30))
        # clip(k, least, most), rounded to the nearest integer, halves to even
        size = tl.where(variance == variance, tl.minimum(tl.maximum(size, least), most), most)
        wanted = ((size + _WHOLE) - _WHOLE).to(tl.int64)  # to the nearest, halves to even
    # 1 ≤ k_t ≤ min(k_max, number of visible keys)
    return tl.minimum(tl.minimum(tl.maximum(wanted, 1), K_MAX), position + 1).to(tl.int32)


@triton.jit
def _select(
    q, k, w, bias, counts, out, buffer, scratch, table, cu, cu_keys, CHUNKS, scale, base, least, most, beta, reference,
    HI, DI, K_MAX, RULE: tl.constexpr, PACKED: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Select the keys of each query, from the latest to the earliest, then −1.

    in       q [B·Tq·HI, DI], k [B·Tk, DI], w [B·Tq·HI], bias [HI], counts [B·Tq] (RULE given)
    out      out [B·Tq, K_MAX]
    scratch  a program's own: buffer [BQ, 2, CAPACITY], scratch [2, BQ]
    layout   table, cu of chunks of BQ queries; cu_keys of the keys; CHUNKS: rows of the table. A program takes every
             num_programs-th of them
    rule     base, least, most, beta, reference of `AdaptiveK`
    """
    slot = tl.program_id(0)
    buffer += slot.to(tl.int64) * (BQ * 2 * CAPACITY)
    scratch += slot * (2 * BQ)
    line = tl.arange(0, BQ)
    for chunk in range(slot, CHUNKS, tl.num_programs(0)):
        busy, query, exists, position, key_begin = query_block(table, cu, cu_keys, chunk, BQ)
        if busy:
            q_rows, w_rows, bias_rows = index_queries(q, w, bias, query, exists, HI, DI, BQ, BH, BD)
            total = tl.sum(tl.reshape(w_rows, (BQ, BH)), axis=1)
            # ranks compare I_ts / Σ_j w_tj
            inverse = 1 / tl.maximum(total, 1.1754944e-38)
            held, floor = tl.zeros((BQ,), tl.int32), tl.full((BQ,), -1, tl.int32)
            seen, mean, squares = (
                tl.zeros((BQ,), tl.float32),
                tl.zeros((BQ,), tl.float32),
                tl.zeros((BQ,), tl.float32),
            )
            last = tl.max(tl.where(exists, position + 1, 0), axis=0)
            tiles = tl.cdiv(last, BS)
            for step in range(tiles):
                # I_ts of the next BS keys, from the latest tile to the earliest
                key, scores, ranked = _tile(
                    q_rows, w_rows, bias_rows, inverse, k, key_begin, (tiles - 1 - step) * BS, last, scale, DI,
                    BQ, BH, BS, BD, SCORES,
                )  # fmt: skip
                visible = exists[:, None] & (key[None] <= position[:, None])
                if (RULE == "seed") | (RULE == "inverse"):
                    # v = Var_s I_ts/H^I over the visible keys
                    seen, mean, squares = _joined(seen, mean, squares, scores, visible, HI)
                # t itself ranks above all
                ranked = tl.where(key[None] == position[:, None], _HIGHEST, ranked)
                # candidates: visible keys above the floor, from the latest to the earliest
                good = visible & (ranked > floor[:, None])
                place = held[:, None] + tl.cumsum(good.to(tl.int32), axis=1, reverse=True) - 1
                cell = buffer + line[:, None] * (2 * CAPACITY) + place
                tl.store(cell, ranked, mask=good)
                tl.store(cell + CAPACITY, (key + tl.zeros_like(ranked)).to(tl.int32), mask=good)
                held += tl.sum(good.to(tl.int32), axis=1)
                if tl.max(held, axis=0) > CAPACITY - BS:
                    # keep the best k_max; the lowest of them is the new floor
                    held, floor = prune(buffer, scratch, held, K_MAX, BQ, CAPACITY, ROWS)
            # S_t = the best k_t candidates
            wanted = _count_wanted(
                counts, query, exists, position, squares / tl.maximum(seen, 1.0), base, least, most, beta, reference,
                K_MAX, RULE,
            )  # fmt: skip
            first = key_begin if PACKED else key_begin * 0
            own = out + tl.min(query, axis=0) * K_MAX
            write_best(buffer, scratch, held, wanted, own, exists, first, K_MAX, BQ, CAPACITY, ROWS)


select_tuned = Tuned(
    _select,
    [
        triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 8, 2), (64, 8, 2), (128, 4, 2), (32, 4, 3))
    ],
    ["HI", "DI", "RULE", "SCORES"],
)
