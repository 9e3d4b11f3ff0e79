"""Lists of keys by query as one bit a pair, for kernels that go over tiles of queries and keys and mask what is hidden.

A bit a pair is T²/8 bytes, 8 MB for 8,192 tokens, where a list of 4,096 places takes 134 MB. Bits are set by atomic
OR, whose result does not depend on the order, so that results repeat bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(64)
"""Keys whose queries `Selection.queries` names together."""
MASK_COST = 128
"""Masked keys of one query head that take as long as one place of a list, for one query head a KV head.

Both ways, forward and backward, on an H100 at 8,192 and 32,768 tokens with lists of 2,048 keys and three query heads to
a KV head: tiles take 0.20 and 0.42 of the time that lists take (results/published/gpu_h100.csv)."""


class Selection(NamedTuple):
    """The keys that queries select, int32.

    bits    [B, Tq, W]: bit i of word w says that the query selects key 32·w + i; W words hold Tk, rounded up to 128
    keys    [B, Tq, 2]: a query's first key and the one after its last; Tk and 0 where it selects none
    queries [B, ⌈Tk/BLOCK⌉, 2]: the first query that may select a key of a block, and the one after the last
    """

    bits: Tensor
    keys: Tensor
    queries: Tensor


def masks(queries_heads: int, kv_heads: int, keys: int, places: int) -> bool:
    """Return whether tiles over all keys cost less than reading the lists' keys one by one."""
    return keys * queries_heads <= MASK_COST * places * kv_heads


def selection_of(indices: Tensor, keys: int) -> Selection:
    """Return the selection that lists [B, Tq, n] make among `keys` keys, −1 where a place is unused."""
    batch, queries, places = indices.shape
    indices, blocks = indices.contiguous(), triton.cdiv(keys, BLOCK.value)
    int32 = {"dtype": torch.int32, "device": indices.device}
    bits = torch.zeros(batch, queries, 4 * triton.cdiv(keys, 128), **int32)
    ends, spans = torch.empty(batch, queries, 2, **int32), torch.empty(batch, blocks, 2, **int32)
    _set_bits[(batch * queries,)](indices, bits, ends, places, bits.shape[2], keys, BN=1024)
    _query_spans[(blocks, batch)](ends, spans, queries, blocks, BN=1024)
    return Selection(bits, ends, spans)


@triton.jit
def _set_bits(indices, bits, ends, N, W, Tk, BN: tl.constexpr):
    """The bits of one query's list, and its first and last key.

    in   indices [B·Tq, N], −1 where unused
    out  bits [B·Tq, W], 0 before; ends [B·Tq, 2]
    """
    query = tl.program_id(0).to(tl.int64)
    first, last = tl.full((BN,), 0, tl.int32) + Tk, tl.zeros((BN,), tl.int32)
    for start in range(0, N, BN):
        place = start + tl.arange(0, BN)
        key = tl.load(indices + query * N + place, mask=place < N, other=-1).to(tl.int32)
        used = key >= 0
        one = tl.full((BN,), 1, tl.int32) << (key & 31)
        tl.atomic_or(bits + query * W + (key >> 5), one, mask=used, sem="relaxed")
        first = tl.minimum(first, tl.where(used, key, Tk))
        last = tl.maximum(last, key + 1)
    tl.store(ends + query * 2, tl.min(first, axis=0))
    tl.store(ends + query * 2 + 1, tl.max(last, axis=0))


@triton.jit
def _query_spans(ends, spans, Tq, BLOCKS, BN: tl.constexpr):
    """The queries whose first and last keys have a block of BLOCK keys between them.

    in   ends [B·Tq, 2]
    out  spans [B·BLOCKS, 2]
    """
    block = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    begin = block * BLOCK
    first, last = tl.full((BN,), 0, tl.int32) + Tq, tl.zeros((BN,), tl.int32)
    for start in range(0, Tq, BN):
        query = start + tl.arange(0, BN)
        at = ends + (batch * Tq + query) * 2
        low = tl.load(at, mask=query < Tq, other=0)
        high = tl.load(at + 1, mask=query < Tq, other=0)
        meets = (low < begin + BLOCK) & (high > begin)
        first = tl.minimum(first, tl.where(meets, query, Tq))
        last = tl.maximum(last, tl.where(meets, query + 1, 0))
    out = spans + (batch * BLOCKS + block) * 2
    tl.store(out, tl.min(first, axis=0))
    tl.store(out + 1, tl.max(last, axis=0))


@triton.jit
def chosen_keys(bits, query, exists, start, W, BS: tl.constexpr):
    """Whether queries [rows] of the axis B·Tq select BS keys, from `start`, a multiple of BS, on: bool [rows, BS]."""
    column = tl.arange(0, BS)[None]
    word = bits + query.to(tl.int64) * W + start // 32
    words = tl.broadcast_to(tl.load(word, mask=exists, other=0)[:, None], (query.shape[0], BS))
    for i in tl.static_range(1, BS // 32):
        words = tl.where(column >= 32 * i, tl.load(word + i, mask=exists, other=0)[:, None], words)
    place = column % 32 if BS >= 32 else start % 32 + column
    return ((words >> place) & 1) != 0


@triton.jit
def key_span(ends, query, exists, BS: tl.constexpr):
    """The keys that any of these queries selects: the first, rounded down to a multiple of BS, and the end."""
    # an unused row has no key: first above last
    first = tl.load(ends + query * 2, mask=exists, other=2147483647)
    last = tl.load(ends + query * 2 + 1, mask=exists, other=0)
    return tl.min(first, axis=0) // BS * BS, tl.max(last, axis=0)
