"""The gradients of the mesa layer's gates, write strengths and Λ, in the notation of triton_key_gradients.py.

dg_r sums all terms that pass gate r, and is never a difference of such sums, so that a gate that lets nothing pass
has the gradient 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import States, Tokens
from kernels.ops.mesa.triton_read import tile_configs
from kernels.ops.mesa.triton_tiles import (
    decay_of_pairs,
    decay_to_end,
    load_scalars,
    load_state,
    load_tokens,
    store_scalars,
)
from kernels.ops.mesa.work import CHUNK
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


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
