"""Reading the mesa layer's states: products of all tokens' G_t with a vector each, in tiles of 64 × 64.

    o_t = G_tᵀ·x_t = c_t·Rᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s

and, with other tensors in their places, dx_t = G_t·do_t, and backward in time dv_s (triton_key_gradients.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import Tokens
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


def tile_configs(first: str, second: str) -> list[triton.Config]:
    """Return launch configurations whose tile's sides have these names."""
    sizes = (64, 64, 8, 1), (64, 64, 4, 1), (32, 64, 4, 2), (32, 32, 4, 2)
    return [
        triton.Config({first: rows, second: columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in sizes
    ]


_read_tuned = Tuned(_read, tile_configs("BK", "BV"), ["K", "V", "TRANSPOSED", "REVERSED", "PRECISION"])


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
