"""Softmax over blocks of keys, from the query's own block back to the first, with the queries carried along.

A program has C / SPLIT queries of one block and head. In their own block the logits are ready. They meet the keys of an
earlier block, which stand turned at its end, and then go through the block: q ← q − q·Dᵀ, which costs K² a query and
block beside C·(K + V). Between blocks runs the sum of gates, outside the scale, in fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import load_block, minus_turned
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tiles import load_tokens, store_tokens
from kernels.triton_common.tuning import Tuned


@triton.jit
def _absorb(score, values, total, top, weight):
    """One more tile of keys: Σ e^(score − top)·values, the largest score, Σ e^(score − top)."""
    higher = tl.maximum(top, tl.max(score, 1))
    fading, share = tl.exp(top - higher), tl.exp(score - higher[:, None])
    total = total * fading[:, None] + tl.dot(share.to(values.dtype), values, input_precision="ieee")
    return total, higher, weight * fading + tl.sum(share, 1)


@triton.jit
def _attend(
    query, key, v, turns, logits, before, after, out, lse, table, cu, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    block, part = (tl.program_id(0) // SPLIT).to(tl.int64), tl.program_id(0) % SPLIT
    head, KV_HEADS = tl.program_id(1), HEADS // GROUP
    kv = head // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, wide, broad = part * (C // SPLIT) + tl.arange(0, C // SPLIT), tl.arange(0, K), tl.arange(0, V)
        own = block * HEADS + head
        total = tl.zeros((C // SPLIT, V), tl.float32)
        top = tl.full((C // SPLIT,), float("-inf"), tl.float32)
        weight = tl.zeros((C // SPLIT,), tl.float32)
        for start in range(0, (part + 1) * (C // SPLIT), BC):
            column = start + tl.arange(0, BC)
            score = load_block(logits + own * C * C, row, column, C)
            values = load_tokens(v, first + column, end, kv, KV_HEADS, broad, VALUES)
            total, top, weight = _absorb(score, values, total, top, weight)
        moving = load_block(query + own * C * K, row, wide, K).to(tl.float32)
        forgotten = tl.zeros((C // SPLIT,), tl.float32)
        if before is not None:
            forgotten += tl.load(before + own * C + row)
        number = tl.load(table + block * 2 + 1)
        for back in range(1, number + 1):
            other = block - back
            for start in range(0, C, BC):
                column = start + tl.arange(0, BC)
                keys = load_block(key + (other * KV_HEADS + kv) * C * K, column, wide, K)
                score = tl.dot(moving.to(keys.dtype), tl.trans(keys), input_precision="ieee")
                if after is not None:
                    score += forgotten[:, None] + tl.load(after + (other * HEADS + head) * C + column)[None]
                token = first - back * C + column
                values = load_tokens(v, token, end, kv, KV_HEADS, broad, VALUES)
                total, top, weight = _absorb(score, values, total, top, weight)
            if turns is not None:
                moving = minus_turned(moving, turns + (other * KV_HEADS + kv) * K * K, K, True)
            if before is not None:
                forgotten += tl.load(before + (other * HEADS + head) * C + C - 1)
        store_tokens(out, total / weight[:, None], first + row, end, head, HEADS, broad, VALUES)
        at = (first + row) * HEADS + head
        tl.store(lse + at, top + tl.log(weight), mask=first + row < end)


attend = Tuned(
    _attend,
    [
        triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
        for split, columns, warps, stages in (
            (1, 64, 8, 2), (1, 64, 4, 2), (1, 64, 4, 1), (1, 32, 4, 3), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2),
            (2, 64, 4, 1), (2, 32, 4, 1),
        )
    ],
    ["C", "K", "V", "GROUP"],
)  # fmt: skip
