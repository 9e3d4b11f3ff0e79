"""Lightning top-k: find each query's threshold by narrowing a range of ranks, then collect what is above it."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch.device import load_rows
from kernels.launch.tuning import Tuned
from kernels.ops.lightning_topk.triton_scores import (
    index_activations,
    index_queries,
    over_heads,
    query_block,
    rank,
)

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
def _survey(
    q_rows, w_rows, bias_rows, inverse, k, exists, position, key_begin, last, scale, HI, DI,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Lowest and highest rank of the keys before each query, and the variance of I/H^I over what it sees."""
    lowest, highest = tl.full((BQ,), _HIGHEST, tl.int32), tl.full((BQ,), -1, tl.int32)
    seen, mean, squares = (
        tl.zeros((BQ,), tl.float32),
        tl.zeros((BQ,), tl.float32),
        tl.zeros((BQ,), tl.float32),
    )
    for start in range(0, last, BS):
        key, scores, ranked = _tile(
            q_rows, w_rows, bias_rows, inverse, k, key_begin, start, last, scale, DI, BQ, BH, BS, BD, SCORES
        )
        earlier = exists[:, None] & (key[None] < position[:, None])
        lowest = tl.minimum(lowest, tl.min(tl.where(earlier, ranked, _HIGHEST), axis=1))
        highest = tl.maximum(highest, tl.max(tl.where(earlier, ranked, -1), axis=1))
        # Means and squares of tiles are joined, so that nothing large is subtracted from its like.
        visible = exists[:, None] & (key[None] <= position[:, None])
        more = tl.sum(visible.to(tl.float32), axis=1)
        both = tl.maximum(seen + more, 1.0)
        share = tl.where(visible, scores / HI, 0.0)
        centre = tl.sum(share, axis=1) / tl.maximum(more, 1.0)
        away = tl.where(visible, share - centre[:, None], 0.0)
        gap = centre - mean
        squares += tl.sum(away * away, axis=1) + gap * gap * seen * more / both
        mean += gap * more / both
        seen += more
    return lowest, highest, squares / tl.maximum(seen, 1.0)


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
    return tl.minimum(tl.minimum(tl.maximum(wanted, 1), K_MAX), position + 1)


@triton.jit
def _narrow(
    q_rows, w_rows, bias_rows, inverse, k, exists, position, key_begin, last, scale, DI, low, high, wanted,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
    WAYS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """Ranks low < high such that at least `wanted` earlier keys reach low and fewer reach high, and how many do.

    Ends where high = low + 1 (then low is the threshold, perhaps of several keys) or exactly as many as wanted
    reach one of the two; at the latest after ROUNDS, WAYS^ROUNDS > 2^31. Each round scores all keys again and counts
    them against WAYS ranks.
    """
    reach_low, reach_high = tl.where(exists, position, 0), tl.zeros((BQ,), tl.int64)
    way = tl.arange(0, WAYS)[None]
    for _round in range(ROUNDS):
        unsettled = (high - low > 1) & (reach_low != wanted) & (reach_high != wanted)
        if tl.max(unsettled.to(tl.int32), axis=0) > 0:
            width = (high - low)[:, None]
            candidate = low[:, None] + width // WAYS * way + width % WAYS * way // WAYS
            count = tl.zeros((BQ, WAYS), tl.int32)
            for start in range(0, last, BS):
                key, _scores, ranked = _tile(
                    q_rows, w_rows, bias_rows, inverse, k, key_begin, start, last, scale, DI,
                    BQ, BH, BS, BD, SCORES,
                )  # fmt: skip
                ranked = tl.where(key[None] < position[:, None], ranked, -1)
                count += tl.sum((ranked[:, None, :] >= candidate[:, :, None]).to(tl.int32), axis=2)
            reach = count.to(tl.int64)
            enough = reach >= wanted[:, None]
            low = tl.max(tl.where(enough, candidate, low[:, None]), axis=1)
            high = tl.min(tl.where(enough, high[:, None], candidate), axis=1)
            reach_low = tl.min(tl.where(enough, reach, reach_low[:, None]), axis=1)
            reach_high = tl.max(tl.where(enough, reach_high[:, None], reach), axis=1)
    return low, high, reach_high


@triton.jit
def _collect(
    q_rows, w_rows, bias_rows, inverse, k, out, query, exists, position, key_begin, last, scale, DI,
    low, high, ties_wanted, FIRST_KEY, K_MAX,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Write the query itself, all that reach high and the latest of those from low to high: rank·2^32 + position."""
    written, ties = tl.zeros((BQ,), tl.int32), tl.zeros((BQ,), tl.int32)
    tiles = tl.cdiv(last, BS)
    for step in range(tiles):
        start = (tiles - 1 - step) * BS
        key, _scores, ranked = _tile(
            q_rows, w_rows, bias_rows, inverse, k, key_begin, start, last, scale, DI, BQ, BH, BS, BD, SCORES
        )
        own = exists[:, None] & (key[None] == position[:, None])
        earlier = exists[:, None] & (key[None] < position[:, None])
        tie = earlier & (ranked >= low[:, None]) & (ranked < high[:, None])
        place = ties[:, None] + tl.cumsum(tie.to(tl.int32), axis=1, reverse=True)
        chosen = own | (earlier & (ranked >= high[:, None])) | (tie & (place <= ties_wanted[:, None]))
        slot = written[:, None] + tl.cumsum(chosen.to(tl.int32), axis=1, reverse=True) - 1
        entry = tl.where(own, _HIGHEST, ranked).to(tl.int64) * 4294967296 + (FIRST_KEY + key)[None]
        tl.store(out + query[:, None] * K_MAX + slot, entry, mask=chosen & (slot < K_MAX))
        ties += tl.sum(tie.to(tl.int32), axis=1)
        written += tl.sum(chosen.to(tl.int32), axis=1)


@triton.jit
def _select(
    q, k, w, bias, counts, out, table, cu, cu_keys, scale, base, least, most, beta, reference, HI, DI, K_MAX,
    RULE: tl.constexpr, PACKED: tl.constexpr, WAYS: tl.constexpr, ROUNDS: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """out [B·Tq, K_MAX]: of each query the chosen keys in any order, as rank·2^32 + position."""
    busy, query, exists, position, key_begin = query_block(table, cu, cu_keys, tl.program_id(0), BQ)
    if busy:
        q_rows, w_rows, bias_rows = index_queries(q, w, bias, query, exists, HI, DI, BQ, BH, BD)
        total = tl.sum(tl.reshape(w_rows, (BQ, BH)), axis=1)
        inverse = 1 / tl.maximum(total, 1.1754944e-38)
        last = tl.max(tl.where(exists, position + 1, 0), axis=0)
        low, highest, variance = _survey(
            q_rows, w_rows, bias_rows, inverse, k, exists, position, key_begin, last, scale, HI, DI, BQ, BH, BS, BD,
            SCORES,
        )  # fmt: skip
        wanted = _count_wanted(
            counts, query, exists, position, variance, base, least, most, beta, reference, K_MAX, RULE
        )
        wanted = tl.where(exists, wanted - 1, 0)  # beside the query itself
        low, high, above = _narrow(
            q_rows, w_rows, bias_rows, inverse, k, exists, position, key_begin, last, scale, DI,
            low, highest + 1, wanted, BQ, BH, BS, BD, SCORES, WAYS, ROUNDS,
        )  # fmt: skip
        first_key = key_begin if PACKED else key_begin * 0
        _collect(
            q_rows, w_rows, bias_rows, inverse, k, out, query, exists, position, key_begin, last, scale, DI,
            low, high, wanted - above, first_key, K_MAX, BQ, BH, BS, BD, SCORES,
        )  # fmt: skip


select_tuned = Tuned(
    _select,
    [
        triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 8, 2), (64, 8, 2), (128, 4, 2), (32, 4, 3))
    ],
    ["HI", "DI", "RULE", "SCORES"],
)
