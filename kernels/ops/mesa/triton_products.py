"""The intra-chunk products of the mesa layer with all tokens' states G_t, and the gradients of what made the states.

Of what a token s has written, −y_t·x_tᵀ (of H_t) and x_t·do_tᵀ (of G_t) come back from the tokens t ≥ s of its
chunk; dH and dG are what comes back from after it. With d_ts = exp(Σ_{s<r≤t} g_r), what is left at t of what s wrote,
and e_s the same at the chunk's end:

    dv_s = β_s·( e_s·dGᵀ·k_s + Σ_t d_ts·(x_t·k_s)·do_t )
    dk_s = β_s·( e_s·(2·dH·k_s + dG·v_s) + Σ_t d_ts·((do_t·v_s − y_t·k_s)·x_t − (x_t·k_s)·y_t) )
    dβ_s = e_s·(k_sᵀ·dH·k_s + k_sᵀ·dG·v_s) + Σ_t d_ts·(x_t·k_s)·(do_t·v_s − y_t·k_s)

dg_r gathers all that passes gate r: sums of such terms, never differences of them, so that a gate that lets
nothing pass has a gradient of nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import States, Tokens
from kernels.ops.mesa.triton_tiles import (
    decay_of_pairs,
    decay_to_end,
    load_scalars,
    load_state,
    load_tokens,
    store_scalars,
    store_tokens,
)
from kernels.ops.mesa.work import CHUNK
from kernels.triton_common.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


@triton.jit
def _read(
    x, k, v, g, beta, state, out, table, cu, H, K, V,
    TRANSPOSED: tl.constexpr, REVERSED: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """out_t = c_t·Sᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s, a tile [C, BV]; S [K, V], or Sᵀ is there instead (TRANSPOSED).

    REVERSED in time, out_s = β_s·( e_s·Sᵀ·x_s + Σ_{t≥s} d_ts·(x_s·k_t)·v_t ).

    inputs     x, k [T, H, K]; v [T, H, V]; g, beta [T, H]; state S [rows of the table, H, K, V] or [.., V, K]
    outputs    out [T, H, V]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  TRANSPOSED, REVERSED; PRECISION of products; C tokens a chunk; BK, BV sides of the state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, rows = tl.arange(0, C), (end - first).to(tl.int32)
        column = tl.program_id(2) * BV + tl.arange(0, BV)
        state += (chunk * H + head) * K * V
        total = tl.zeros((C, BV), tl.float32)
        pairs = tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            i = start + tl.arange(0, BK)
            query = load_tokens(x, first, row, rows, head, H, i, K)
            keys = load_tokens(k, first, row, rows, head, H, i, K)
            # x_t·k_s
            pairs += tl.dot(query, tl.trans(keys), input_precision=PRECISION)
            # Sᵀ·x_t
            if TRANSPOSED:
                tile = load_state(state, column, i, V, K)
                total += tl.dot(query, tl.trans(tile), input_precision=PRECISION)
            else:
                tile = load_state(state, i, column, K, V)
                total += tl.dot(query, tile, input_precision=PRECISION)
        gates = load_scalars(g, first, row, rows, head, H)
        strength = load_scalars(beta, first, row, rows, head, H)
        values = load_tokens(v, first, row, rows, head, H, column, V)
        if REVERSED:
            # β_s·e_s·Sᵀ·x_s + Σ_{t≥s} β_s·d_ts·(x_s·k_t)·v_t
            pairs *= tl.trans(decay_of_pairs(gates, row, row)) * strength[:, None]
            total *= (decay_to_end(g, first, row, rows, head, H, C) * strength)[:, None]
        else:
            # c_t·Sᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s,  W_ts = β_s·d_ts
            pairs *= decay_of_pairs(gates, row, row) * strength[None]
            total *= tl.exp(tl.cumsum(gates, axis=0))[:, None]
        total += tl.dot(pairs, values, input_precision=PRECISION)
        store_tokens(out, total, first, row, rows, head, H, column, V)


@triton.jit
def _key_gradients(
    x, y, k, v, g, beta, do, dh_kk, dh_kv, dk, table, cu, H, K, V,
    PRECISION: tl.constexpr, C: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """dk, a tile [C, BJ] of a chunk and head.

    inputs     x, y, k [T, H, K]; v, do [T, H, V]; g, beta [T, H]; dh_kk dH, dh_kv dG after every row of the table
    outputs    dk [T, H, K]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  PRECISION of products; C tokens a chunk; BI, BJ sides of a state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, rows = tl.arange(0, C), (end - first).to(tl.int32)
        j = tl.program_id(2) * BJ + tl.arange(0, BJ)
        state = (chunk * H + head) * K
        total = tl.zeros((C, BJ), tl.float32)
        met = tl.zeros((C, C), tl.float32)
        back = tl.zeros((C, C), tl.float32)
        for start in range(0, K, BI):
            i = start + tl.arange(0, BI)
            keys = load_tokens(k, first, row, rows, head, H, i, K)
            solution = load_tokens(x, first, row, rows, head, H, i, K)
            # x_t·k_s
            met += tl.dot(solution, tl.trans(keys), input_precision=PRECISION)
            # −y_t·k_s
            second = load_tokens(y, first, row, rows, head, H, i, K)
            back -= tl.dot(second, tl.trans(keys), input_precision=PRECISION)
            # 2·dH·k_s
            tile = load_state(dh_kk + state * K, i, j, K, K)
            total += 2 * tl.dot(keys, tile, input_precision=PRECISION)
        for start in range(0, V, BI):
            i = start + tl.arange(0, BI)
            values = load_tokens(v, first, row, rows, head, H, i, V)
            output = load_tokens(do, first, row, rows, head, H, i, V)
            # do_t·v_s − y_t·k_s
            back += tl.dot(output, tl.trans(values), input_precision=PRECISION)
            # + dG·v_s
            tile = load_state(dh_kv + state * V, j, i, K, V)
            total += tl.dot(values, tl.trans(tile), input_precision=PRECISION)
        between = decay_of_pairs(load_scalars(g, first, row, rows, head, H), row, row)
        # e_s·(2·dH·k_s + dG·v_s)
        total *= decay_to_end(g, first, row, rows, head, H, C)[:, None]
        # + Σ_t d_ts·(do_t·v_s − y_t·k_s)·x_t
        solution = load_tokens(x, first, row, rows, head, H, j, K)
        total += tl.dot(tl.trans(between * back), solution, input_precision=PRECISION)
        # − Σ_t d_ts·(x_t·k_s)·y_t
        second = load_tokens(y, first, row, rows, head, H, j, K)
        total -= tl.dot(tl.trans(between * met), second, input_precision=PRECISION)
        # dk_s = β_s·( … )
        total *= load_scalars(beta, first, row, rows, head, H)[:, None]
        store_tokens(dk, total, first, row, rows, head, H, j, K)


@triton.jit
def _exchange(
    x, y, k, v, h, dh, first, row, rows, head, H, i, K, V,
    PRECISION: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Of rows i of a state h before the chunk, and of its gradient dh after it: x·h·y [C], k·dh·v [C] and Σ h⊙dh."""
    solution = load_tokens(x, first, row, rows, head, H, i, K)
    keys = load_tokens(k, first, row, rows, head, H, i, K)
    from_start = tl.zeros_like(row).to(tl.float32)
    to_end = tl.zeros_like(row).to(tl.float32)
    across = 0.0
    for start in range(0, V, BJ):
        j = start + tl.arange(0, BJ)
        before, after = load_state(h, i, j, K, V), load_state(dh, i, j, K, V)
        # x_t·h·y_t
        met = tl.dot(solution, before, input_precision=PRECISION)
        from_start += tl.sum(met * load_tokens(y, first, row, rows, head, H, j, V), axis=1)
        # k_s·dh·v_s
        written = tl.dot(keys, after, input_precision=PRECISION)
        to_end += tl.sum(written * load_tokens(v, first, row, rows, head, H, j, V), axis=1)
        # Σ h⊙dh
        across += tl.sum(before * after)
    return from_start, to_end, across


@triton.jit
def _gate_gradients(
    x, y, k, v, g, beta, do, h_kk, h_kv, dh_kk, dh_kv, dg, dbeta, dlamb, table, cu, H, K, V,
    PRECISION: tl.constexpr, C: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """dg and dβ of a chunk and head, and its part of dΛ = −Σ_t x_t ⊙ y_t.

    inputs     x, y, k [T, H, K]; v, do [T, H, V]; g, beta [T, H]; h_kk, h_kv before and dh_kk, dh_kv after every row
               of the table
    outputs    dg, dbeta [T, H]; dlamb [rows of the table, H, K]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  PRECISION of products; C tokens a chunk; BI, BJ sides of a state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    row, rows = tl.arange(0, C), (end - first).to(tl.int32)
    if sequence < 0:
        rows = 0  # what an idle row of the table loads is 0, and so is its part of dΛ
    state = (chunk * H + head) * K
    met = tl.zeros((C, C), tl.float32)
    back = tl.zeros((C, C), tl.float32)
    for start in range(0, K, BI):
        i = start + tl.arange(0, BI)
        keys = load_tokens(k, first, row, rows, head, H, i, K)
        solution = load_tokens(x, first, row, rows, head, H, i, K)
        # x_t·k_s
        met += tl.dot(solution, tl.trans(keys), input_precision=PRECISION)
        # −y_t·k_s
        second = load_tokens(y, first, row, rows, head, H, i, K)
        back -= tl.dot(second, tl.trans(keys), input_precision=PRECISION)
        # dΛ = −Σ_t x_t ⊙ y_t
        tl.store(dlamb + state + i, -tl.sum(solution * second, axis=0), mask=i < K)
    if sequence >= 0:
        for start in range(0, V, BI):
            i = start + tl.arange(0, BI)
            values = load_tokens(v, first, row, rows, head, H, i, V)
            output = load_tokens(do, first, row, rows, head, H, i, V)
            # do_t·v_s − y_t·k_s
            back += tl.dot(output, tl.trans(values), input_precision=PRECISION)
        from_start = tl.zeros((C,), tl.float32)
        to_end = tl.zeros((C,), tl.float32)
        across = 0.0
        for start in range(0, K, BI):
            i = start + tl.arange(0, BI)
            # −x·H·y,  k·dH·k,  Σ H⊙dH
            a, b, c = _exchange(
                x, y, k, k, h_kk + state * K, dh_kk + state * K, first, row, rows, head, H, i, K, K, PRECISION, BJ
            )  # fmt: skip
            from_start, to_end, across = from_start - a, to_end + b, across + c
            # x·G·do,  k·dG·v,  Σ G⊙dG
            a, b, c = _exchange(
                x, do, k, v, h_kv + state * V, dh_kv + state * V, first, row, rows, head, H, i, K, V, PRECISION, BJ
            )  # fmt: skip
            from_start, to_end, across = from_start + a, to_end + b, across + c
        gates = load_scalars(g, first, row, rows, head, H)
        # dβ_s = e_s·(k_sᵀ·dH·k_s + k_sᵀ·dG·v_s) + Σ_t d_ts·(x_t·k_s)·(do_t·v_s − y_t·k_s)
        pairs = decay_of_pairs(gates, row, row) * met * back
        to_end *= decay_to_end(g, first, row, rows, head, H, C)
        store_scalars(dbeta, tl.sum(pairs, axis=0) + to_end, first, row, rows, head, H)
        # dg_r: all that passes gate r, from a token s < r or from before the chunk to a token t ≥ r or beyond the chunk
        strength = load_scalars(beta, first, row, rows, head, H)
        from_start *= tl.exp(tl.cumsum(gates, axis=0))
        reached = (tl.cumsum(pairs, axis=0, reverse=True) + to_end[None]) * strength[None]
        passing = tl.where(row[:, None] > row[None], reached, from_start[None])
        gradient = tl.sum(passing, axis=1) + across * tl.exp(tl.sum(gates, axis=0))
        store_scalars(dg, gradient, first, row, rows, head, H)


def _tiles(first: str, second: str) -> list[triton.Config]:
    sizes = (64, 64, 8, 1), (64, 64, 4, 1), (32, 64, 4, 2), (32, 32, 4, 2)
    return [
        triton.Config({first: rows, second: columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in sizes
    ]


_read_tuned = Tuned(_read, _tiles("BK", "BV"), ["K", "V", "TRANSPOSED", "REVERSED", "PRECISION"])
_key_gradients_tuned = Tuned(_key_gradients, _tiles("BI", "BJ"), ["K", "V", "PRECISION"])
_gate_gradients_tuned = Tuned(_gate_gradients, _tiles("BI", "BJ"), ["K", "V", "PRECISION"])


def read(
    x: Tensor,
    tokens: Tokens,
    states: Tensor,
    dtype: torch.dtype,
    layout: ChunkLayout,
    precision: str,
    *,
    transposed: bool = False,
    backward: bool = False,
) -> Tensor:
    """Compute G_tᵀ·x_t [B, T, H, V] in `dtype`, G_t being written with k and v of `tokens`.

    states    [rows, H, K, V] before every chunk, or [rows, H, V, K] if `transposed`
    backward  in time: the tokens that wrote G read it, and `states` are those after the chunks
    """
    k, v, g, beta = tokens
    heads, height, width = k.shape[2], k.shape[3], v.shape[3]
    out = torch.empty(v.shape, dtype=dtype, device=v.device)
    _read_tuned[lambda meta: (layout.chunks, heads, triton.cdiv(width, meta["BV"]))](
        x, k, v, g, beta, states, out, layout.table, layout.cu, heads, height, width,
        TRANSPOSED=transposed, REVERSED=backward, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return out


def key_gradients(
    x: Tensor, y: Tensor, tokens: Tokens, do: Tensor, after: States, layout: ChunkLayout, precision: str
) -> Tensor:
    """Compute dk in k's type; `after` are the gradients of H and G after every chunk."""
    heads, height, width = x.shape[2], x.shape[3], tokens.v.shape[3]
    dk = torch.empty_like(tokens.k)
    _key_gradients_tuned[lambda meta: (layout.chunks, heads, triton.cdiv(height, meta["BJ"]))](
        x, y, *tokens, do, *after, dk, layout.table, layout.cu, heads, height, width, PRECISION=precision, C=CHUNK
    )  # fmt: skip
    return dk


def gate_gradients(
    x: Tensor, y: Tensor, tokens: Tokens, do: Tensor, before: States, after: States, layout: ChunkLayout,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute dg and dβ in the types of g and beta, and the parts [rows, H, K] of Λ's gradient.

    before  H and G before every chunk
    after   the gradients of H and G after every chunk
    """
    heads, height, width = x.shape[2], x.shape[3], tokens.v.shape[3]
    dg, dbeta = torch.empty_like(tokens.g), torch.empty_like(tokens.beta)
    parts = torch.empty(layout.chunks, heads, height, dtype=torch.float32, device=x.device)
    _gate_gradients_tuned[(layout.chunks, heads)](
        x, y, *tokens, do, *before, *after, dg, dbeta, parts, layout.table, layout.cu, heads, height, width,
        PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return dg, dbeta, parts
