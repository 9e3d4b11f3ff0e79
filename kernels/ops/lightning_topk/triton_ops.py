"""Lightning top-k without a matrix of scores: every key is scored once, and each query keeps the best so far.

Scores become ranks, 31 bits in the scores' order with ties where the definition has them. A program has BQ queries of
one sequence, with all their index heads as rows of one product, and goes over the keys that they see from the latest
to the earliest. Keys that rank above a query's floor go into its candidate buffer; a full buffer is pruned to its
best k_max, the lowest of which is the new floor. With random scores about k·ln(T/k) keys reach the buffer, which is
then pruned about ln(T/k) times. At the end, when the variance of the scores is known, an adaptive k says how many of
the buffer's best are written down. As keys come from the latest, the buffer is in the result's order, and of equal
ranks it is the later that stay.

Nothing is saved: no gradient passes. Candidate buffers are the memory: 8 bytes times about 2·k_max a query, for the
queries that are at work at one time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.lightning_topk.scores import AdaptiveK
from kernels.ops.sparse_attention.triton_masked import Selection, no_bits, query_spans
from kernels.packing import boundaries
from kernels.triton_common import chunk_bounds, chunk_table, padded, sigmoid
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows
from kernels.triton_common.tuning import Tuned

# Candidate buffers: the keys of a query whose rank is above its floor, pruned to the best when the buffer is full.
#
# A buffer has the ranks and the positions of candidates [2, CAPACITY], in the order in which they came. Vectors over
# a program's queries are exchanged between threads through scratch memory.


@triton.jit
def _top_candidates(ranks, wanted):
    """A mask of the best `wanted` candidates, and the lowest rank among those.

    ranks [ROWS, CAPACITY], −1 where there is no candidate. The lowest rank is put together bit by bit: the largest
    number r with |{ranks ≥ r}| ≥ wanted. It is 0 where there are fewer candidates, and all are chosen.
    """
    lowest = tl.zeros(wanted.shape, tl.int32)
    # lowest = max{r : |{ranks ≥ r}| ≥ wanted}, from the highest bit to the lowest
    for step in range(31):
        higher = lowest | (1 << (30 - step))
        reach = tl.sum((ranks >= higher[:, None]).to(tl.int32), axis=1)
        lowest = tl.where(reach >= wanted, higher, lowest)
    # all above it, and of those that tie with it the first ones in the buffer, which are the later keys
    above = ranks > lowest[:, None]
    tie = ranks == lowest[:, None]
    ties_wanted = wanted - tl.sum(above.to(tl.int32), axis=1)
    return above | (tie & (tl.cumsum(tie.to(tl.int32), axis=1) <= ties_wanted[:, None])), lowest


@triton.jit
def _candidates(buffer, scratch, row, CAPACITY: tl.constexpr):
    """Cells [ROWS, CAPACITY] of the buffers of these rows, and their ranks, −1 in empty ones."""
    column = tl.arange(0, CAPACITY)
    cell = buffer + row[:, None] * (2 * CAPACITY) + column[None]
    filled = column[None] < tl.load(scratch + row)[:, None]
    return cell, tl.load(cell, mask=filled, other=-1)


@triton.jit
def prune(buffer, scratch, held, K_MAX, BQ: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr):
    """Leave the best K_MAX in every buffer: how many are left, and the rank that later ones have to beat, [BQ] each."""
    line = tl.arange(0, BQ)
    tl.store(scratch + line, held)
    tl.debug_barrier()
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _candidates(buffer, scratch, row, CAPACITY)
        # S = the best K_MAX candidates, moved to the front in their order
        chosen, lowest = _top_candidates(ranks, tl.full((ROWS,), 0, tl.int32) + K_MAX)
        places = tl.load(cell + CAPACITY, mask=chosen, other=0)
        many = tl.sum(chosen.to(tl.int32), axis=1)
        target = buffer + row[:, None] * (2 * CAPACITY) + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
        tl.debug_barrier()  # all have read before any writes
        tl.store(target, ranks, mask=chosen)
        tl.store(target + CAPACITY, places, mask=chosen)
        tl.store(scratch + row, many)
        # floor = the lowest rank of S, −1 while there are fewer than K_MAX
        tl.store(scratch + BQ + row, tl.where(many < K_MAX, -1, lowest))
    tl.debug_barrier()
    return tl.load(scratch + line), tl.load(scratch + BQ + line)


@triton.jit
def write_best(
    buffer, scratch, held, wanted, out, ends, exists, first, K_MAX,
    BQ: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write which candidates are the best `wanted`, their positions plus `first`.

    Without ends to out [BQ, K_MAX] in the buffer's order, then −1; with ends [BQ, 2] to out [BQ, K_MAX], words of 32
    bits that are 0, and there the first position and the one after the last.
    """
    line = tl.arange(0, BQ)
    tl.store(scratch + line, held)
    tl.store(scratch + BQ + line, tl.where(exists, wanted, 0))
    tl.debug_barrier()
    column = tl.arange(0, CAPACITY)[None]
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _candidates(buffer, scratch, row, CAPACITY)
        fewest = tl.load(scratch + BQ + row)
        # S_t = the best `wanted` candidates, from the latest to the earliest
        chosen, _lowest = _top_candidates(ranks, fewest)
        places = (first + tl.load(cell + CAPACITY, mask=chosen, other=0)).to(tl.int32)
        target = out + row.to(tl.int64)[:, None] * K_MAX
        if ends is not None:
            tl.atomic_or(target + (places >> 5), 1 << (places & 31), mask=chosen, sem="relaxed")
            lowest_place = tl.min(tl.where(chosen, places, 2147483647), axis=1)
            tl.store(ends + row * 2, lowest_place, mask=fewest > 0)
            tl.store(ends + row * 2 + 1, tl.max(tl.where(chosen, places + 1, 0), axis=1), mask=fewest > 0)
        else:
            many = tl.sum(chosen.to(tl.int32), axis=1)
            tl.store(target + tl.cumsum(chosen.to(tl.int32), axis=1) - 1, places, mask=chosen)
            # −1 after them
            unused = (column >= many[:, None]) & (column < K_MAX) & (fewest > 0)[:, None]
            tl.store(target + column, tl.full((ROWS, CAPACITY), -1, tl.int32), mask=unused)
    tl.debug_barrier()  # the next queries write to the same buffers


# The indexer's scores in a tile: BQ queries of one sequence, all index heads, BS keys.

_STEPS = tl.constexpr(2.0**40)  # scores I_ts/Σ_j w_tj are compared in steps of 2^−40
_WHOLE = tl.constexpr(2.0**23)  # from here on every fp32 is a whole number
_UNKNOWN = tl.constexpr(2**31 - 2)  # the rank of a score that is NaN: only the query's own key is above it


@triton.jit
def query_block(table, cu, cu_keys, row, BQ: tl.constexpr):
    """A chunk of BQ queries, by its row of the table: which they are and where they stand.

    returns  busy: whether the row has a chunk; query int64 [BQ], their rows of the axis B·Tq; exists bool [BQ];
             position int64 [BQ] among the keys of their sequence; key_begin, the row of the sequence's first key

    The last query of a sequence stands at its last key. table, cu: of chunks of queries; cu_keys [N+1]: bounds of keys.
    """
    sequence, begin, end, first = chunk_bounds(table, cu, row, BQ)
    busy = tl.maximum(sequence, 0)
    key_begin = tl.load(cu_keys + busy).to(tl.int64)
    key_end = tl.load(cu_keys + busy + 1).to(tl.int64)
    query = first + tl.arange(0, BQ)
    # t = i + Tk − Tq
    position = query - begin + (key_end - key_begin) - (end - begin)
    return sequence >= 0, query, query < end, position, key_begin


@triton.jit
def heads_of(query, exists, FIRST, HEADS, GROUP, BQ: tl.constexpr, BH: tl.constexpr):
    """Rows (query, head) [BQ·BH] of a tensor [·, HEADS, width], heads FIRST … FIRST + GROUP, and which exist."""
    member = tl.arange(0, BH)
    row = query[:, None] * HEADS + FIRST + member[None]
    is_row = exists[:, None] & (member < GROUP)[None]
    return tl.reshape(row, (BQ * BH,)), tl.reshape(is_row, (BQ * BH,))


@triton.jit
def index_queries(q, w, bias, query, exists, HI, DI, BQ: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr):
    """q [BQ·BH, BD], w and bias [BQ·BH] of rows (query, index head); 0 where a head or query is padding."""
    row, is_row = heads_of(query, exists, 0, HI, HI, BQ, BH)
    q_rows = load_rows(q, row, is_row, DI, BD)
    w_rows = tl.load(w + row, mask=is_row, other=0.0).to(tl.float32)
    return q_rows, w_rows, tl.load(bias + row % HI, mask=is_row, other=0.0).to(tl.float32)


@triton.jit
def index_activations(q_rows, k_tile, bias_rows, scale, SCORES: tl.constexpr):
    """σ(q_tj·k_s·scale + b_j) of rows (query, index head) and keys, [BQ·BH, BS]; σ is the sigmoid or the ReLU."""
    # z_tj,s = q_tj·k_s·scale + b_j
    similar = tl.dot(q_rows, tl.trans(k_tile), input_precision="ieee")
    logits = similar * scale + bias_rows[:, None]
    # σ(z)
    return sigmoid(logits) if SCORES == "sigmoid" else tl.where(logits < 0, 0.0, logits)


@triton.jit
def over_heads(x, BQ: tl.constexpr, BH: tl.constexpr):
    """Σ over the index heads: rows (query, index head) [BQ·BH, BS] -> [BQ, BS]."""
    return tl.sum(tl.reshape(x, (BQ, BH, x.shape[1])), axis=1)


@triton.jit
def rank(scores, inverse, SCORES: tl.constexpr):
    """The ranks of scores [BQ, BS], int32 ≥ 0: higher for a higher score. inverse is 1/Σ_j w_tj.

    The bits of a non-negative fp32 are in its order. Of a sigmoid it is the share of Σ_j w_tj in steps of 2^−40,
    rounded to whole ones. Of a ReLU it is the score's size without its last bit, which makes room for the sign.
    A score that is NaN, whatever its bits, ranks above all that are numbers.
    """
    if SCORES == "sigmoid":
        # I_ts/Σ_j w_tj in steps of 2^−40; adding and subtracting 2²³ rounds to whole steps
        steps = scores * inverse[:, None] * _STEPS
        steps = tl.where(steps < _WHOLE, (steps + _WHOLE) - _WHOLE, steps)
        ranked = steps.to(tl.int32, bitcast=True)
        unknown = steps != steps
    else:
        # the magnitude without its last bit, its sign before it
        bits = scores.to(tl.int32, bitcast=True)
        size = (bits & 0x7FFFFFFF) >> 1
        ranked = tl.where(bits < 0, -size, size) + 0x40000000
        unknown = scores != scores
    return tl.where(unknown, _UNKNOWN, ranked)


# The selection: every key is scored once.
#
#     I_ts = Σ_j w_tj·σ(q_tj·k_s·scale + b_j)          S_t = {t} ∪ the k_t − 1 other s ≤ t of highest I_ts
#
# Sizes:
#
#     HI, DI    index heads and their width; BH, BD: of tiles
#     BQ, BS    queries and keys of a tile
#     CAPACITY  candidates that a query's buffer holds; ROWS: buffers pruned at a time

_HIGHEST = tl.constexpr(2**31 - 1)  # the rank of the query itself


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
    q, k, w, bias, counts, out, ends, buffer, scratch, table, cu, cu_keys, CHUNKS, scale,
    base, least, most, beta, reference, HI, DI, K_MAX, WIDTH,
    RULE: tl.constexpr, PACKED: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Select the keys of each query: lists from the latest to the earliest, then −1, or bits.

    in       q [B·Tq·HI, DI], k [B·Tk, DI], w [B·Tq·HI], bias [HI], counts [B·Tq] (RULE given)
    out      out [B·Tq, WIDTH]: lists, WIDTH = K_MAX, where ends is None, else words of bits, 0 before, with ends
             [B·Tq, 2], a query's first key and the one after its last
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
                    # another tile might not fit: keep the best k_max; the lowest of them is the new floor
                    held, floor = prune(buffer, scratch, held, K_MAX, BQ, CAPACITY, ROWS)
            # S_t = the best k_t candidates
            wanted = _count_wanted(
                counts, query, exists, position, squares / tl.maximum(seen, 1.0), base, least, most, beta, reference,
                K_MAX, RULE,
            )  # fmt: skip
            first = key_begin if PACKED else key_begin * 0
            own = out + tl.min(query, axis=0) * WIDTH
            own_ends = None if ends is None else ends + tl.min(query, axis=0) * 2
            write_best(buffer, scratch, held, wanted, own, own_ends, exists, first, WIDTH, BQ, CAPACITY, ROWS)


select_tuned = Tuned(
    _select,
    [
        triton.Config({"BS": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (128, 8, 2), (64, 8, 2), (32, 4, 3))
    ],
    ["HI", "DI", "RULE", "SCORES"],
)


MOST_ROWS = 128
PROGRAMS = 528
"""The most programs, each with its candidate buffers: four for each multiprocessor of an H200."""
ROOM = 128
"""The least room of a buffer beyond k_max, in candidates: as many as the largest BS."""
PRUNED = 2048
"""Candidates that a program prunes at a time, in several rows if one has fewer."""


def queries_a_program(heads: int) -> int:
    """Return the number of queries, at most 16, whose index heads together fill a tile of MOST_ROWS rows."""
    return min(16, MOST_ROWS // triton.next_power_of_2(heads))


def index_sizes(q_idx: Tensor) -> dict[str, int]:
    """Return the constants that the indexer's kernels share for q_idx [B, T, HI, DI]: the sizes of their tiles.

    HI, DI: index heads and their width. BQ: queries of a tile, whose rows are (query, index head); BH: HI, rounded up
    to a power of two; BD: DI, likewise (`padded`).
    """
    heads, width = q_idx.shape[2:]
    return {
        "HI": heads,
        "DI": width,
        "BQ": queries_a_program(heads),
        "BH": triton.next_power_of_2(heads),
        "BD": padded(width),
    }


def alike(q_idx: Tensor, k_idx: Tensor) -> tuple[Tensor, Tensor]:
    """Return q_idx [B, Tq, HI, DI] and k_idx [B, Tk, DI], contiguous and in one dtype: theirs if it is one, else fp32.

    Products of 16-bit numbers are exact in fp32, so that casting them changes no score.
    """
    if q_idx.dtype != k_idx.dtype:
        q_idx, k_idx = q_idx.to(torch.float32), k_idx.to(torch.float32)
    return q_idx.contiguous(), k_idx.contiguous()


def lightning_topk_triton(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.lightning_topk` on a GPU.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], k [B, Tq] or a rule -> int32 [B, Tq, k_max].
    """
    counts, rule = (k, None) if isinstance(k, Tensor) else (None, k)
    given = (x.detach() for x in (q_idx, k_idx, w_idx, bias))
    return _list(*given, counts, k_max, scores, cu_seqlens, *_settings(rule))


def selection_triton(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: AdaptiveK,
    scores: str,
    cu_seqlens: Tensor | None = None,
) -> Selection:
    """What `kernels.lightning_topk` selects, as bits: there are no lists.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI].
    """
    given = (x.detach() for x in (q_idx, k_idx, w_idx, bias))
    found = _bits(*given, k.widest, scores, cu_seqlens, *_settings(k), returns=(True,) * 3)
    return Selection(*found)


def _settings(rule: AdaptiveK | None) -> tuple[str, float, float, float, float, float]:
    """A rule's name and numbers; those of given counts where there is none."""
    if rule is None:
        return "given", 1, 1, 1, 1.0, 1.0
    return rule.rule, rule.base, rule.least, rule.most, rule.beta, rule.reference


@operator
def _list(q_idx, k_idx, w_idx, bias, counts, k_max, scores, cu_seqlens, *settings) -> Tensor:
    indices = torch.empty(*q_idx.shape[:2], k_max, dtype=torch.int32, device=q_idx.device)
    _launch(q_idx, k_idx, w_idx, bias, counts, k_max, scores, cu_seqlens, settings, indices, None)
    return indices


@operator
def _bits(q_idx, k_idx, w_idx, bias, k_max, scores, cu_seqlens, *settings) -> tuple[Tensor, Tensor, Tensor]:
    bits, ends = no_bits(q_idx, k_idx.shape[1])
    _launch(q_idx, k_idx, w_idx, bias, None, k_max, scores, cu_seqlens, settings, bits, ends)
    return bits, ends, query_spans(ends, k_idx.shape[1])


def _launch(
    q_idx, k_idx, w_idx, bias, counts, k_max, scores, cu_seqlens, settings, out: Tensor, ends: Tensor | None
) -> None:
    """Fill lists, or bits and ends."""
    q_idx, k_idx = alike(q_idx, k_idx)
    counts = None if counts is None else counts.contiguous()
    sizes = index_sizes(q_idx)
    table = chunk_table(q_idx, cu_seqlens, sizes["BQ"])
    programs, size = min(len(table), PROGRAMS), _capacity(k_max, k_idx.shape[1])
    buffer, scratch = (
        torch.empty(programs, sizes["BQ"], 2, n, dtype=torch.int32, device=q_idx.device) for n in (size, 1)
    )
    rule, *numbers = settings
    select_tuned[(programs,)](
        q_idx, k_idx, w_idx.contiguous(), bias.contiguous(), counts, out, ends, buffer, scratch, table,
        boundaries(q_idx, cu_seqlens), boundaries(k_idx, cu_seqlens), len(table), q_idx.shape[-1] ** -0.5, *numbers,
        K_MAX=k_max, WIDTH=out.shape[2], RULE=rule, PACKED=cu_seqlens is not None, SCORES=scores,
        CAPACITY=size, ROWS=max(1, min(sizes["BQ"], PRUNED // size)), **sizes,
    )  # fmt: skip


def _capacity(k_max: int, keys: int) -> int:
    """Candidates that a buffer holds: all keys if there are few, else k_max and as many again."""
    return triton.next_power_of_2(max(k_max, min(k_max + max(k_max, 2 * ROOM), keys + ROOM)))
