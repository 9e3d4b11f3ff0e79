"""Attention of every query to the tokens of its chosen blocks, the heads of a group together.

forward, dq   a program has one query with the G heads of one KV head, at least 16 rows for the tensor cores,
              and walks over the tokens of its list of blocks
dk, dv        a program has a block of keys and walks over the queries that chose it, G heads each. Their list
              comes from sorting (block, KV head, query) as whole numbers. The first block is chosen by all:
              a list is cut into parts of SPLIT queries, and what the parts give is added in their order
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.device import chunk_bounds, load_rows, padded, store_rows
from kernels.launch.packing import boundaries, chunk_table, first_chunks
from kernels.launch.tuning import Tuned
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.triton_parts import absorb, finish, fitting, in_base_2, load_gradient, product

SPLIT = 2048
"""Queries of a block's list that one program walks over; the average list is n·l' long."""


@triton.jit
def _own_key(query, QUERIES, SHIFT):
    """Where a query's own token stands on the axis of all keys: sequences have QUERIES, and SHIFT more keys."""
    return query + (query // QUERIES + 1) * SHIFT


@triton.jit
def _count(list_of_blocks, N: tl.constexpr, BLOCKS: tl.constexpr):
    """How many blocks a query has chosen; −1 stands after the last."""
    slot = tl.arange(0, BLOCKS)
    blocks = tl.load(list_of_blocks + slot, mask=slot < N, other=-1)
    return tl.sum((blocks >= 0).to(tl.int32), axis=0)


@triton.jit
def _keys_at(list_of_blocks, column, stop, own, SELECT: tl.constexpr):
    """The keys in these columns of a query's blocks laid side by side, and whether it sees them."""
    begin = tl.load(list_of_blocks + column // SELECT, mask=column < stop, other=0).to(tl.int64)
    key = begin + column % SELECT
    return key, (column < stop) & (key <= own)


@triton.jit
def _forward(
    q, k, v, o, lse, chosen, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, SELECT: tl.constexpr, BLOCKS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    query, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    member = tl.arange(0, BG)
    row, inside = query * HEADS + kv_head * GROUP + member, member < GROUP
    queries = load_rows(q, row, inside, K, BK)
    own = _own_key(query, QUERIES, SHIFT)
    list_of_blocks = chosen + (query * (HEADS // GROUP) + kv_head) * N
    stop = _count(list_of_blocks, N, BLOCKS) * SELECT
    top = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    out = tl.zeros((BG, BV), tl.float32)
    for at in range(0, stop, BN):
        key, seen = _keys_at(list_of_blocks, at + tl.arange(0, BN), stop, own, SELECT)
        key_row = key * (HEADS // GROUP) + kv_head
        scores = product(queries, load_rows(k, key_row, seen, K, BK)) * in_base_2(scale)
        scores = tl.where(seen[None], scores, float("-inf"))
        top, total, out = absorb(scores, load_rows(v, key_row, seen, V, BV), top, total, out)
    out, total = finish(top, total, out)
    store_rows(o, row, inside, out, V, BV)
    tl.store(lse + row, total, mask=inside)


@triton.jit
def _query_gradient(
    q, k, v, do, gates, lse, delta, before, dq, chosen, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, SELECT: tl.constexpr, BLOCKS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dq = before + scale · Σ ds·k; before: what another branch gave."""
    query, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    member = tl.arange(0, BG)
    row, inside = query * HEADS + kv_head * GROUP + member, member < GROUP
    queries = load_rows(q, row, inside, K, BK)
    d_out = load_gradient(do, gates, row, inside, 1, V, BV)
    shift = tl.load(lse + row, mask=inside, other=0.0)
    less = tl.load(delta + row * 3 + 1, mask=inside, other=0.0)
    own = _own_key(query, QUERIES, SHIFT)
    list_of_blocks = chosen + (query * (HEADS // GROUP) + kv_head) * N
    stop = _count(list_of_blocks, N, BLOCKS) * SELECT
    total = tl.zeros((BG, BK), tl.float32)
    for at in range(0, stop, BN):
        key, seen = _keys_at(list_of_blocks, at + tl.arange(0, BN), stop, own, SELECT)
        key_row = key * (HEADS // GROUP) + kv_head
        keys = load_rows(k, key_row, seen, K, BK)
        scores = product(queries, keys) * in_base_2(scale) - shift[:, None]
        weights = tl.exp2(tl.where(seen[None], scores, float("-inf")))
        d_weights = product(d_out, load_rows(v, key_row, seen, V, BV))
        d_scores = (weights * (d_weights - less[:, None])).to(keys.dtype)
        total += tl.dot(d_scores, keys, input_precision="ieee")
    total = total * scale + load_rows(before, row, inside, K, BK).to(tl.float32)
    store_rows(dq, row, inside, total, K, BK)


@triton.jit
def _key_gradients(
    q, k, v, do, gates, lse, delta, dk, dv, entries, parts, offsets, blocks, first_key, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SELECT: tl.constexpr, SPLIT: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
    BQ: tl.constexpr,
):  # fmt: skip
    """dk [parts, SELECT, K] and dv of a tile of keys of a block, from one part of the block's list."""
    part = tl.program_id(0).to(tl.int64)
    owner, _, end, first = chunk_bounds(parts, offsets, part, SPLIT)
    if owner >= 0:
        kv_head = owner % (HEADS // GROUP)
        sequence, _, key_end, block = chunk_bounds(blocks, first_key, owner // (HEADS // GROUP), SELECT)
        if sequence >= 0:
            offset = tl.program_id(1) * BN + tl.arange(0, BN)
            key = block + offset
            inside = (offset < SELECT) & (key < key_end)
            key_row = key * (HEADS // GROUP) + kv_head
            keys, values = load_rows(k, key_row, inside, K, BK), load_rows(v, key_row, inside, V, BV)
            dk_total, dv_total = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BV), tl.float32)
            place = tl.arange(0, BQ * BG)
            for at in range(first, tl.minimum(first + SPLIT, end), BQ):
                entry = at + place // BG
                there = (entry < tl.minimum(first + SPLIT, end)) & (place % BG < GROUP)
                query = tl.load(entries + entry, mask=there, other=0).to(tl.int64)
                row = query * HEADS + kv_head * GROUP + place % BG
                queries = load_rows(q, row, there, K, BK)
                d_out = load_gradient(do, gates, row, there, 1, V, BV)
                shift = tl.load(lse + row, mask=there, other=0.0)
                less = tl.load(delta + row * 3 + 1, mask=there, other=0.0)
                scores = product(keys, queries) * in_base_2(scale) - shift[None]
                seen = there[None] & (key[:, None] <= _own_key(query, QUERIES, SHIFT)[None])
                weights = tl.exp2(tl.where(seen, scores, float("-inf")))
                dv_total += tl.dot(weights.to(d_out.dtype), d_out, input_precision="ieee")
                d_scores = (weights * (product(values, d_out) - less[None])).to(queries.dtype)
                dk_total += tl.dot(d_scores, queries, input_precision="ieee")
            out_row = part * SELECT + offset
            store_rows(dk, out_row, offset < SELECT, dk_total * scale, K, BK)
            store_rows(dv, out_row, offset < SELECT, dv_total, V, BV)


@triton.jit
def _add_parts(
    parts, out, first_part, blocks, first_key, KV_HEADS: tl.constexpr, SELECT: tl.constexpr,
    WIDTH: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """out [Tk, KV_HEADS, WIDTH]: a block's parts added up, first to last."""
    owner = tl.program_id(0).to(tl.int64)
    sequence, _, key_end, block = chunk_bounds(blocks, first_key, owner // KV_HEADS, SELECT)
    if sequence >= 0:
        offset = tl.program_id(1) * BN + tl.arange(0, BN)
        total = tl.zeros((BN, BW), tl.float32)
        for part in range(tl.load(first_part + owner), tl.load(first_part + owner + 1)):
            row = tl.full((BN,), part, tl.int64) * SELECT + offset
            total += load_rows(parts, row, offset < SELECT, WIDTH, BW)
        row = (block + offset) * KV_HEADS + owner % KV_HEADS
        store_rows(out, row, (offset < SELECT) & (block + offset < key_end), total, WIDTH, BW)


def _configs(name: str, *sizes: tuple[int, int, int]) -> list[triton.Config]:
    return [triton.Config({name: size}, num_warps=warps, num_stages=stages) for size, warps, stages in sizes]


_KEY = ["HEADS", "GROUP", "N", "SELECT", "K", "V"]
_WALKS = ((64, 4, 2), (64, 2, 2), (32, 1, 3), (32, 2, 3), (128, 4, 2), (16, 2, 2))
_forward_tuned = Tuned(_forward, _configs("BN", *_WALKS), _KEY)
_query_gradient_tuned = Tuned(_query_gradient, _configs("BN", *_WALKS), _KEY)
_key_gradients_tuned = Tuned(
    _key_gradients,
    [
        triton.Config({}, num_warps=warps, num_stages=stages)
        for warps, stages in ((4, 2), (8, 2), (4, 3), (4, 1))
    ],
    ["HEADS", "GROUP", "SELECT", "K", "V"],
)


def selected_forward(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes, scale: float
) -> tuple[Tensor, Tensor]:
    """o [B, Tq, H, V] in q's dtype, log-sum-exps to base 2 fp32 [B, Tq, H]; all inputs contiguous.

    chosen int32 [B, Tq, Hkv, n]: first key of every chosen block on the axis of all B·Tk keys, −1 after the last.
    """
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _forward_tuned[(q.shape[0] * q.shape[1], k.shape[2])](
        q, k, v, out, lse, chosen, q.shape[1], k.shape[1] - q.shape[1], scale, **_walk_options(q, k, v, sizes)
    )
    return out, lse


def selected_backward(
    gradient: tuple[Tensor, Tensor, Tensor],
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    sizes: Sizes,
    scale: float,
    cu_seqlens: Tensor | None,
    before: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q (with `before` added), k and v; gradient: do, gates, delta fp32 [B, Tq, H, 3]."""
    dq, shape = torch.empty_like(q), (q.shape[1], k.shape[1] - q.shape[1], scale)
    given = (q, k, v, *gradient[:2], lse, gradient[2])
    _query_gradient_tuned[(q.shape[0] * q.shape[1], k.shape[2])](
        *given, before, dq, chosen, *shape, **_walk_options(q, k, v, sizes)
    )
    lists, tables = _readers(chosen, k, sizes.select_size, cu_seqlens), _widths(q, k, v)
    dk, dv = (
        torch.empty(len(lists.parts), sizes.select_size, x.shape[3], dtype=torch.float32, device=x.device)
        for x in (k, v)
    )
    rows = fitting(64, k, v)
    group = triton.next_power_of_2(tables["GROUP"])
    keys = min(rows, padded(sizes.select_size))
    tiles = triton.cdiv(sizes.select_size, keys)
    _key_gradients_tuned[(len(lists.parts), tiles)](
        *given, dk, dv, lists.queries, lists.parts, lists.offsets, lists.blocks, lists.first_key, *shape,
        **tables, SELECT=sizes.select_size, SPLIT=SPLIT, BG=group, BN=keys, BQ=max(1, rows // group),
    )  # fmt: skip
    return dq, *(_added(parts, x, lists, sizes.select_size) for parts, x in ((dk, k), (dv, v)))


def _added(parts: Tensor, like: Tensor, lists: _Readers, select_size: int) -> Tensor:
    out, rows = torch.empty_like(like), min(64, padded(select_size))
    _add_parts[(len(lists.offsets) - 1, triton.cdiv(select_size, rows))](
        parts, out, lists.first_part, lists.blocks, lists.first_key, like.shape[2], select_size, like.shape[3],
        BN=rows, BW=padded(like.shape[3]),
    )  # fmt: skip
    return out


def _widths(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    widths = {"K": k.shape[3], "V": v.shape[3], "BK": padded(k.shape[3]), "BV": padded(v.shape[3])}
    return {**widths, "HEADS": q.shape[2], "GROUP": q.shape[2] // k.shape[2]}


def _walk_options(q: Tensor, k: Tensor, v: Tensor, sizes: Sizes) -> dict[str, int]:
    options = _widths(q, k, v)
    blocks = {"N": sizes.n_select, "BLOCKS": triton.next_power_of_2(sizes.n_select)}
    return {**options, **blocks, "SELECT": sizes.select_size, "BG": padded(options["GROUP"])}


@dataclass(frozen=True)
class _Readers:
    """Who reads which block. An owner is a pair (block, KV head): number block · Hkv + head.

    queries     int32 [E]: the queries of all owners' lists, one list after another
    offsets     [owners + 1]: where each begins
    parts       int32 [P, 2]: owner and number of every part of SPLIT queries, as `chunk_table` has them
    first_part  int32 [owners + 1]: where the parts of an owner begin
    blocks      int32 [blocks, 2]: sequence and number of every block
    first_key   int32 [N+1]: where the sequences begin
    """

    queries: Tensor
    offsets: Tensor
    parts: Tensor
    first_part: Tensor
    blocks: Tensor
    first_key: Tensor


def _readers(chosen: Tensor, k: Tensor, select_size: int, cu_seqlens: Tensor | None) -> _Readers:
    """The lists of `chosen`, inverted. Whole numbers only; waits for nothing."""
    tokens, heads, queries = k.shape[0] * k.shape[1], k.shape[2], chosen.shape[0] * chosen.shape[1]
    first_key, blocks = boundaries(k, cu_seqlens), chunk_table(k, cu_seqlens, select_size)
    head = torch.arange(heads, device=k.device)
    query = torch.arange(queries, device=k.device)[:, None, None]
    begin = chosen.flatten(0, 1).to(torch.int64)
    begin = torch.where(begin < 0, tokens + 1, begin)
    number = ((begin * heads + head[:, None]) * queries + query).flatten().sort().values
    sequence, place = blocks.to(torch.int64).unbind(1)
    begin = torch.where(sequence < 0, tokens, first_key[sequence.clamp_min(0)] + place * select_size)
    owners = (begin[:, None] * heads + head).flatten()
    owners = torch.cat([owners, owners.new_full((1,), (tokens + 1) * heads)])
    offsets = torch.searchsorted(number, owners * queries)
    entries = number[None]
    parts, first_part = chunk_table(entries, offsets, SPLIT), first_chunks(entries, offsets, SPLIT)
    return _Readers((number % queries).to(torch.int32), offsets, parts, first_part, blocks, first_key)
