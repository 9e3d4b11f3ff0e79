"""Gradients of the mesa layer's keys, gates, write strengths and Λ; those of values are a `read` backward in time.

For what a token s writes, the tokens t ≥ s of its chunk give the gradients −y_t·x_tᵀ (of H_t) and x_t·do_tᵀ (of G_t),
and later chunks dH and dG. With d_ts = exp(Σ_{s<r≤t} g_r), the decay from s to t, and e_s that from s to the chunk's
end:

    dv_s = β_s·( e_s·dGᵀ·k_s + Σ_t d_ts·(x_t·k_s)·do_t )
    dk_s = β_s·( e_s·(2·dH·k_s + dG·v_s) + Σ_t d_ts·((do_t·v_s − y_t·k_s)·x_t − (x_t·k_s)·y_t) )
    dβ_s = e_s·(k_sᵀ·dH·k_s + k_sᵀ·dG·v_s) + Σ_t d_ts·(x_t·k_s)·(do_t·v_s − y_t·k_s)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa import CHUNK
from kernels.ops.mesa.triton_forward import (
    States,
    Tokens,
    decay_of_pairs,
    decay_to_end,
    load_scalars,
    load_state,
    load_tokens,
    store_scalars,
    store_tokens,
    tile_configs,
)
from kernels.triton_common import ChunkLayout, chunk_bounds
from kernels.triton_common.tuning import Tuned

# Keys.


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
            # 2·dH·k_s; dH is symmetric, and its rows lie in memory
            tile = load_state(dh_kk + state * K, j, i, K, K)
            total += 2 * tl.dot(keys, tl.trans(tile), input_precision=PRECISION)
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


_key_gradients_tuned = Tuned(_key_gradients, tile_configs("BI", "BJ"), ["K", "V", "PRECISION"])


def key_gradients(
    x: Tensor, y: Tensor, tokens: Tokens, do: Tensor, after: States, layout: ChunkLayout, precision: str
) -> Tensor:
    """Compute dk [B, T, H, K] in k's type.

    x, y [B, T, H, K] in fp32: the solutions for q and for the gradient of the solutions; do [B, T, H, V] of the output;
    after: the gradients of H [chunks, H, K, K] and G [chunks, H, K, V] after every chunk.
    """
    heads, height, width = x.shape[2], x.shape[3], tokens.v.shape[3]
    dk = torch.empty_like(tokens.k)
    _key_gradients_tuned[lambda meta: (layout.chunks, heads, triton.cdiv(height, meta["BJ"]))](
        x, y, *tokens, do, *after, dk, layout.table, layout.cu, heads, height, width, PRECISION=precision, C=CHUNK
    )  # fmt: skip
    return dk


# Gates, write strengths and Λ.
#
# dg_r sums all terms that pass gate r, and is never a difference of such sums, so that a gate that lets nothing pass
# has the gradient 0.


@triton.jit
def _exchange(
    read, written, across, y, v, h, dh, first, row, rows, head, H, i, K, V,
    PRECISION: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Rows i of h·y_t and of dh·v_s, on top of `read` and `written`, and Σ h⊙dh over them, on top of `across`.

    h is a state before the chunk, dh its gradient after it, whose rows are multiplied as they lie in memory.

    inputs     read, written [C, BI], across []: sums so far; y, v [T, H, V]; h, dh [K, V]
    outputs    read, written [C, BI], across [], returned, in fp32
    place      first token, row [C], rows of the chunk; head; i [BI], rows of the states
    sizes      H heads; K, V widths of a state
    constants  PRECISION of products; BJ columns of a tile
    """
    for start in range(0, V, BJ):
        j = start + tl.arange(0, BJ)
        before, after = load_state(h, i, j, K, V), load_state(dh, i, j, K, V)
        vectors = load_tokens(y, first, row, rows, head, H, j, V)
        read = tl.dot(vectors, tl.trans(before), read, input_precision=PRECISION)
        vectors = load_tokens(v, first, row, rows, head, H, j, V)
        written = tl.dot(vectors, tl.trans(after), written, input_precision=PRECISION)
        across += tl.sum(before * after)
    return read, written, across


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
        rows = 0  # an idle row of the table loads zeros, and its part of dΛ is 0
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
            # H·y_t,  dH·k_s,  Σ H⊙dH
            read, written = tl.zeros((C, BI), tl.float32), tl.zeros((C, BI), tl.float32)
            read, written, across = _exchange(
                read, written, across, y, k, h_kk + state * K, dh_kk + state * K, first, row, rows, head, H, i, K, K,
                PRECISION, BJ,
            )  # fmt: skip
            # − H·y_t + G·do_t,  + dG·v_s,  + Σ G⊙dG
            read, written, across = _exchange(
                -read, written, across, do, v, h_kv + state * V, dh_kv + state * V, first, row, rows, head, H, i, K, V,
                PRECISION, BJ,
            )  # fmt: skip
            # x_t·( … ),  k_s·( … )
            from_start += tl.sum(load_tokens(x, first, row, rows, head, H, i, K) * read, axis=1)
            to_end += tl.sum(load_tokens(k, first, row, rows, head, H, i, K) * written, axis=1)
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


_gate_gradients_tuned = Tuned(_gate_gradients, tile_configs("BI", "BJ"), ["K", "V", "PRECISION"])


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
