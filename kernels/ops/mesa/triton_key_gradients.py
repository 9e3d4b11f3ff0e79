"""The gradients of the mesa layer's keys; those of gates are in triton_gate_gradients.py.

Those of values are a read backward in time (triton_read.py).

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

from kernels.ops.mesa.triton_arguments import States, Tokens
from kernels.ops.mesa.triton_read import tile_configs
from kernels.ops.mesa.triton_tiles import (
    decay_of_pairs,
    decay_to_end,
    load_scalars,
    load_state,
    load_tokens,
    store_tokens,
)
from kernels.ops.mesa.work import CHUNK
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


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
