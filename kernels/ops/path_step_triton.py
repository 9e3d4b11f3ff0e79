"""One token of PaTH attention in one pass over the cache, which takes nearly all the time.

    attend   a program has one KV head and a span of its tokens, with all the query heads that read it. Of every tile
             of keys it takes the products with w, turns it, stores it, and while it is at hand scores the queries;
             gates are added to `forgotten` in passing. The span gives m = max_j a_j, Σ_j e^(a_j − m)·v_j and
             Σ_j e^(a_j − m)
    combine  a program has a query head and adds up its spans, in their order

    k_j ← k_j − β·(k_j·w)·w,   f_j ← f_j + g   (j < n − 1),   a_j = scale·q·k_j + f_j,   o = Σ_j softmax_j(a_j)·v_j

Keys are turned and scored in fp32. A single query is multiplied with sums, as no tensor core is worth 16 rows for one
of them; a group's, padded to 16, with TF32, which holds 16-bit queries exactly, or in fp32 with three products of
high and low halves. Spans depend on sizes only, not on the GPU, so that the same call gives the same bits.

Launch configurations are not autotuned: a second run would turn the cache again, and at the first token, when a tuner
would run, the cache is empty.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common import padded
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, running_max, store_rows

PROGRAMS = 512
"""Programs that share the work, about: a few for each multiprocessor of a large GPU."""
SPAN = 128
"""The fewest tokens of a program; a multiple of every tile."""


@triton.jit
def _scores(queries, keys, PRECISION: tl.constexpr):
    """The products [queries, keys] of fp32 rows."""
    if queries.shape[0] == 1:
        out = tl.sum(queries * keys, axis=1)[None]
    else:
        out = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    return out


@triton.jit
def _mixed(shares, values, PRECISION: tl.constexpr):
    """The sums [queries, V] of fp32 values [keys, V], weighted by shares [queries, keys]."""
    if shares.shape[0] == 1:
        out = tl.sum(tl.trans(shares) * values, axis=0)[None]
    else:
        out = tl.dot(shares, values, input_precision=PRECISION)
    return out


@triton.jit
def _attend(
    q, keys, values, w, beta, g, forgotten, part_o, part_top, part_weight, scale, HKV, GROUP, N, PARTS, SPAN,
    KEY_B, KEY_H, KEY_N, VALUE_B, VALUE_H, VALUE_N, FORGOTTEN_B, FORGOTTEN_H,
    K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
    BG: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One span of a KV head's cache: turn its keys, add its gates, attend to it.

    in        q [B·H, K], w [B·HKV, K], beta [B·HKV], g [B·H], values
    in place  keys, forgotten; the caches have strides (batch, head, token), the last axis is dense
    out       part_o [B·H, PARTS, V], part_top, part_weight [B·H, PARTS]
    sizes     N tokens in spans of SPAN; GROUP = H/HKV query heads; tiles BG, BN, BK, BV
    """
    entry = tl.program_id(0).to(tl.int64)  # of B · Hkv
    batch, head = entry // HKV, entry % HKV
    keys += batch * KEY_B + head * KEY_H
    values += batch * VALUE_B + head * VALUE_H
    member, column, v_column = tl.arange(0, BG), tl.arange(0, BK), tl.arange(0, BV)
    is_head = member < GROUP
    row = entry * GROUP + member  # of q, [B·H, K]
    queries = load_rows(q, row, is_head, K, BK).to(tl.float32)
    if w is not None:
        w_row = tl.load(w + entry * K + column, mask=column < K, other=0.0).to(tl.float32)
        beta_kv = tl.load(beta + entry).to(tl.float32)
    if g is not None:
        g_rows = tl.load(g + row, mask=is_head, other=0.0).to(tl.float32)
        f_rows = forgotten + batch * FORGOTTEN_B + (head * GROUP + member)[:, None] * FORGOTTEN_H
    total = tl.zeros((BG, BV), tl.float32)
    top = tl.full((BG,), float("-inf"), tl.float32)
    weight = tl.zeros((BG,), tl.float32)
    first = tl.program_id(1) * SPAN
    for start in range(first, tl.minimum(first + SPAN, N), BN):
        token = start + tl.arange(0, BN)
        used, past = token < N, token < N - 1
        at, inside = token.to(tl.int64)[:, None], used[:, None] & (column < K)[None]
        k_tile = tl.load(keys + at * KEY_N + column[None], mask=inside, other=0.0).to(tl.float32)
        v_tile = tl.load(  # loaded early: it has arrived when the scores are there
            values + at * VALUE_N + v_column[None], mask=used[:, None] & (v_column < V)[None], other=0.0
        )
        if g is not None:
            where = is_head[:, None] & used[None]
            f_tile = tl.load(f_rows + token[None], mask=where, other=0.0).to(tl.float32)
        # Where a tile is smaller than the program, threads hold the same element: all have read before one writes.
        tl.debug_barrier()
        if w is not None:
            # k_j ← H·k_j = k_j − β·(k_j·w)·w, but not the newest token's
            beta_kw = beta_kv * tl.sum(k_tile * w_row[None], axis=1)
            k_tile -= tl.where(past, beta_kw, 0.0)[:, None] * w_row[None]
            k_turned = k_tile.to(keys.dtype.element_ty)
            tl.store(keys + at * KEY_N + column[None], k_turned, mask=inside & past[:, None])
        # a_j = scale·q·k_j + f_j, with f_j ← f_j + g
        score = _scores(queries, k_tile, PRECISION) * scale
        if g is not None:
            f_tile += tl.where(past[None], g_rows[:, None], 0.0)
            tl.store(f_rows + token[None], f_tile, mask=where & past[None])
            score += f_tile
        # Σ_j e^(a_j − m)·v_j and Σ_j e^(a_j − m), m = max_j a_j
        score = tl.where(used[None], score, float("-inf"))
        top, centre, shrink = running_max(top, score)
        p = tl.exp(score - centre[:, None])
        total = total * shrink[:, None] + _mixed(p, v_tile.to(tl.float32), PRECISION)
        weight = weight * shrink + tl.sum(p, axis=1)
    place = row * PARTS + tl.program_id(1)
    store_rows(part_o, place, is_head, total, V, BV)
    tl.store(part_top + place, top, mask=is_head)
    tl.store(part_weight + place, weight, mask=is_head)


@triton.jit
def _combine(part_o, part_top, part_weight, o, PARTS, V: tl.constexpr, BP: tl.constexpr, BV: tl.constexpr):
    """Combine the parts of one row: o [B·H, V] = Σ_p e^(m_p − m)·part_o_p / Σ_p e^(m_p − m)·part_weight_p."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((1, BV), tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    for start in range(0, PARTS, BP):
        part = start + tl.arange(0, BP)
        used, place = part < PARTS, row * PARTS + part
        part_m = tl.load(part_top + place, mask=used, other=float("-inf"))
        # m = max_p m_p; parts are rescaled by e^(m_p − m)
        top, centre, shrink = running_max(top, part_m[None])
        factor = tl.exp(part_m - centre)
        o_tile = load_rows(part_o, place, used, V, BV)
        total = total * shrink[:, None] + tl.sum(factor[:, None] * o_tile, axis=0)[None]
        factor *= tl.load(part_weight + place, mask=used, other=0.0)
        weight = weight * shrink + tl.sum(factor[None], axis=1)
    # o = Σ_p e^(m_p − m)·part_o_p / Σ_p e^(m_p − m)·part_weight_p
    store_rows(o, row + tl.arange(0, 1), tl.arange(0, 1) == 0, total / weight[:, None], V, BV)


def path_step_triton(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `kernels.path_step` on a GPU.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None -> [B, H, V] in q's dtype; keys and forgotten are written in place.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    written = (1,) if forgotten is None else (1, 6)
    return _step(q, keys, values, w, beta, g, forgotten, scale, writes=written)


@operator
def _step(q, keys, values, w, beta, g, forgotten, scale) -> Tensor:
    q, w, beta, g = (x if x is None else x.contiguous() for x in (q, w, beta, g))
    (batch, heads, width), (_, kv_heads, tokens, value_width) = q.shape, values.shape
    span = _span(batch * kv_heads, tokens)
    parts = triton.cdiv(tokens, span)
    sums = (
        torch.empty(batch, heads, parts, *more, dtype=torch.float32, device=q.device)
        for more in ((value_width,), (), ())
    )
    part_o, part_top, part_weight = sums
    o = torch.empty(batch, heads, value_width, dtype=q.dtype, device=q.device)
    strides = (
        *keys.stride()[:3],
        *values.stride()[:3],
        *((0, 0) if forgotten is None else forgotten.stride()[:2]),
    )
    tiles = _tiles(heads // kv_heads, width, value_width)
    _attend[(batch * kv_heads, parts)](
        q, keys, values, w, beta, g, forgotten, part_o, part_top, part_weight,
        scale,
        kv_heads, heads // kv_heads, tokens, parts, span, *strides,
        K=width, V=value_width, PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32", **tiles,
    )  # fmt: skip
    _combine[(batch * heads,)](
        part_o, part_top, part_weight, o, parts,
        V=value_width, BP=16, BV=tiles["BV"], num_warps=max(1, tiles["BV"] // 64),
    )  # fmt: skip
    return o


def _span(entries: int, tokens: int) -> int:
    """Tokens of a span, so that there are about PROGRAMS programs."""
    parts = max(1, PROGRAMS // entries)
    return triton.cdiv(triton.cdiv(tokens, parts), SPAN) * SPAN


def _tiles(group: int, width: int, value_width: int) -> dict[str, int]:
    """Tiles of 4096 numbers, 32 a thread: many small programs hide the memory's latency.

    One stage: to have the next tiles on their way too would fill shared memory where heads are wide.
    """
    queries = 1 if group == 1 else padded(group)
    columns = max(padded(width), padded(value_width))
    rows = min(128, max(32, 4096 // columns))
    return {
        "BG": queries,
        "BN": rows,
        "BK": padded(width),
        "BV": padded(value_width),
        "num_warps": 4 if max(queries, rows) * columns <= 4096 else 8,
        "num_stages": 1,
    }
