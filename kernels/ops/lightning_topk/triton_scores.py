"""The indexer's scores in a tile: BQ queries of one sequence, all index heads, BS keys."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.device import chunk_bounds, sigmoid
from kernels.triton_common.tiles import load_rows

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
