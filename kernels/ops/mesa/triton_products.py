"""Products with the states G_t of all tokens, and the gradients of what the states were made from."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.device import chunk_bounds
from kernels.launch.tuning import Tuned
from kernels.ops.mesa.triton_tiles import (
    CHUNK,
    left_at_end,
    left_of_pairs,
    load_rows,
    load_scalars,
    load_tile,
    store_rows,
)  # fmt: skip


@triton.jit
def _read(
    x, k, v, g, beta, state, out, table, cu, H, K, V,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """out_t = (c_t·S + Σ_{s≤t} W_ts·k_s·v_sᵀ)ᵀ·x_t, a tile [C, BV]; S [K, V], or Sᵀ is there instead."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        column = tl.program_id(2) * BV + tl.arange(0, BV)
        state += (chunk * H + head) * K * V
        total = tl.zeros((C, BV), tl.float32)
        pairs = tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            row = start + tl.arange(0, BK)
            query = load_rows(x, token, end, head, H, row, K)
            keys = load_rows(k, token, end, head, H, row, K)
            if TRANSPOSED:
                tile = load_tile(state, column, row, V, K)
                total += tl.dot(query, tl.trans(tile), input_precision=PRECISION)
            else:
                tile = load_tile(state, row, column, K, V)
                total += tl.dot(query, tile, input_precision=PRECISION)
            pairs += tl.dot(query, tl.trans(keys), input_precision=PRECISION)
        gates = load_scalars(g, token, end, head, H)
        pairs *= left_of_pairs(gates, token) * load_scalars(beta, token, end, head, H)[None]
        total *= tl.exp(tl.cumsum(gates, axis=0))[:, None]
        values = load_rows(v, token, end, head, H, column, V)
        total += tl.dot(pairs, values, input_precision=PRECISION)
        store_rows(out, total, token, end, head, H, column, V)


@triton.jit
def _gate_gradient(pairs, from_start, to_end, across, token):
    """dg_r [C]: all that passes gate r, from a token s < r or from before the chunk, to a token t ≥ r or beyond."""
    earlier = token[:, None] > token[None]
    reached = tl.cumsum(pairs, axis=0, reverse=True)
    passing = tl.where(earlier, reached + to_end[None], from_start[None])
    return tl.sum(passing, axis=1) + across


@triton.jit
def _gradients(
    x, y, k, v, g, beta, do, h_kk, h_kv, dh_kk, dh_kv, dk, dv, dg, dbeta, dlamb, table, cu, H, K, V,
    PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dk, dv, dg, dβ of a chunk and head, and its part of dΛ [rows, H, K].

    Of what a token s has written, −y_t·x_tᵀ (of H) and x_t·do_tᵀ (of G) come back from the tokens t of its
    chunk, dh_kk and dh_kv from after it.
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    row = tl.arange(0, BK)
    part = dlamb + (chunk * H + head) * K + row
    if sequence < 0:
        tl.store(part, tl.zeros((BK,), tl.float32), mask=row < K)
    else:
        token = first + tl.arange(0, C)
        solution = load_rows(x, token, end, head, H, row, K)
        second = load_rows(y, token, end, head, H, row, K)
        keys = load_rows(k, token, end, head, H, row, K)
        tl.store(part, -tl.sum(solution * second, axis=0), mask=row < K)
        strength = load_scalars(beta, token, end, head, H)
        gates = load_scalars(g, token, end, head, H)
        left = left_of_pairs(gates, token)
        last = left_at_end(g, token, first + C - 1, end, head, H)
        met = left * tl.dot(solution, tl.trans(keys), input_precision=PRECISION)
        back = -tl.dot(second, tl.trans(keys), input_precision=PRECISION)

        place = (chunk * H + head) * K
        written = tl.zeros((C, BK), tl.float32)
        from_start = tl.zeros((C,), tl.float32)
        to_end = tl.zeros((C,), tl.float32)
        across = 0.0
        for start in range(0, V, BV):
            column = start + tl.arange(0, BV)
            values = load_rows(v, token, end, head, H, column, V)
            output = load_rows(do, token, end, head, H, column, V)
            before = load_tile(h_kv + place * V, row, column, K, V)
            after = load_tile(dh_kv + place * V, row, column, K, V)
            back += tl.dot(output, tl.trans(values), input_precision=PRECISION)
            written += tl.dot(values, tl.trans(after), input_precision=PRECISION)
            read = tl.dot(keys, after, input_precision=PRECISION)
            value_gradient = last[:, None] * read
            value_gradient += tl.dot(tl.trans(met), output, input_precision=PRECISION)
            value_gradient *= strength[:, None]
            store_rows(dv, value_gradient, token, end, head, H, column, V)
            to_end += tl.sum(read * values, axis=1)
            from_start += tl.sum(tl.dot(solution, before, input_precision=PRECISION) * output, axis=1)
            across += tl.sum(before * after)
        before = load_tile(h_kk + place * K, row, row, K, K)
        after = load_tile(dh_kk + place * K, row, row, K, K)
        read = tl.dot(keys, after, input_precision=PRECISION)
        written += 2 * read
        to_end += tl.sum(read * keys, axis=1)
        from_start -= tl.sum(tl.dot(solution, before, input_precision=PRECISION) * second, axis=1)
        across += tl.sum(before * after)

        key_gradient = last[:, None] * written
        key_gradient += tl.dot(tl.trans(left * back), solution, input_precision=PRECISION)
        key_gradient -= tl.dot(tl.trans(met), second, input_precision=PRECISION)
        store_rows(dk, strength[:, None] * key_gradient, token, end, head, H, row, K)

        pairs, to_end = met * back, last * to_end
        scalar, mask = token * H + head, token < end
        gradient = tl.sum(pairs, axis=0) + to_end
        tl.store(dbeta + scalar, gradient.to(dbeta.dtype.element_ty), mask=mask)
        from_start *= tl.exp(tl.cumsum(gates, axis=0))
        across *= tl.exp(tl.sum(gates, axis=0))
        gradient = _gate_gradient(pairs * strength[None], from_start, to_end * strength, across, token)
        tl.store(dg + scalar, gradient.to(dg.dtype.element_ty), mask=mask)


_read_tuned = Tuned(
    _read,
    [
        triton.Config({"BK": rows, "BV": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in ((64, 64, 4, 2), (32, 64, 4, 3), (32, 128, 8, 2), (64, 128, 8, 2))
    ],
    ["K", "V", "TRANSPOSED"],
)
_gradients_tuned = Tuned(
    _gradients,
    [
        triton.Config({"BV": columns}, num_warps=warps, num_stages=1)
        for columns, warps in ((64, 8), (32, 8), (32, 4))
    ],
    ["K", "V"],
)


def read(
    x: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    dtype: torch.dtype,
    table: Tensor,
    cu: Tensor,
    precision: str,
    *,
    transposed: bool = False,
) -> Tensor:
    """G_tᵀ·x_t, where G_t is written with k and v from states [rows, H, K, V], or [rows, H, V, K] if transposed."""
    heads, height, width = k.shape[2], k.shape[3], v.shape[3]
    out = torch.empty(v.shape, dtype=dtype, device=v.device)
    _read_tuned[lambda meta: (len(table), heads, triton.cdiv(width, meta["BV"]))](
        x, k, v, g, beta, states, out, table, cu, heads, height, width,
        TRANSPOSED=transposed, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return out


def gradients(
    x: Tensor,
    y: Tensor,
    tokens: tuple[Tensor, Tensor, Tensor, Tensor],
    do: Tensor,
    states: tuple[Tensor, Tensor],
    gradients_after: tuple[Tensor, Tensor],
    table: Tensor,
    cu: Tensor,
    precision: str,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of tokens k, v, g, beta, in their types, and the parts [rows, H, K] of Λ's gradient."""
    heads, height, width = x.shape[2], x.shape[3], do.shape[3]
    found = [torch.empty_like(token) for token in tokens]
    parts = torch.empty(len(table), heads, height, dtype=torch.float32, device=x.device)
    _gradients_tuned[(len(table), heads)](
        x, y, *tokens, do, *states, *gradients_after, *found, parts, table, cu, heads, height, width,
        PRECISION=precision, C=CHUNK, BK=max(16, triton.next_power_of_2(height)),
    )  # fmt: skip
    return found, parts
