"""Gradients of the chunked delta rule, in the notation of triton_intra_chunk.py and triton_forward.py.

From F = Diag(β)·E, and dS and dF as the walk back leaves them (triton_inter_chunk.py), all chunks at once:

    dF′ = dF − Zᵀ·Diag(β)·dF       dV = Diag(β)·dF′      dβ = Σ_v dF′⊙E
    dP  = scale·dO·Fᵀ    dA = −dV·Fᵀ    dQ̄ = scale·dO·S₀ᵀ    dK̄ = −dV·S₀ᵀ    dK̃ = F·dSᵀ

(N·E = V − K̄·S₀ is differentiated as it stands: no inverse has a gradient of its own.) A product of tokens i > j has
the gates up to i and lacks those up to j, so that gates get from each factor the product with its own gradient, summed
from the chunk's end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_intra_chunk import block_places
from kernels.ops.delta_rule.triton_intra_chunk_backward import inside_channels_back, inside_shared_back
from kernels.ops.delta_rule.triton_tiles import (
    CHUNK,
    decay_from_start,
    decay_to_end,
    load_column,
    load_gates,
    load_rows,
    state_tile,
    store_rows,
)
from kernels.triton_common.device import chunk_bounds, sum_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _values(
    beta, z, errors, d_o, d_writes, d_v, d_beta, d_p, d_a, table, cu, scale, H,
    V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dV [tokens, H, V], dβ [tokens, H], dP and dA [tokens, H, C]."""
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        strength = load_column(beta, token, last, head, H)[:, None]
        triangle = tl.trans(load_rows(z, token, last, head, H, tl.arange(0, C), C))
        products, overlap = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        by_beta = tl.zeros((C,), tl.float32)
        for start in range(0, V, BV):
            value = start + tl.arange(0, BV)
            d_write = load_rows(d_writes, token, last, head, H, value, V).to(tl.float32)
            d_error = (d_write * strength).to(z.dtype.element_ty)
            d_write -= tl.dot(triangle, d_error, input_precision="ieee")
            error = load_rows(errors, token, last, head, H, value, V).to(tl.float32)
            by_beta += tl.sum(d_write * error, axis=1)
            d_value = d_write * strength
            store_rows(d_v, d_value, token, last, head, H, value, V)
            write = tl.trans((error * strength).to(z.dtype.element_ty))
            d_out = load_rows(d_o, token, last, head, H, value, V).to(z.dtype.element_ty)
            products += tl.dot(d_out, write, input_precision="ieee")
            overlap -= tl.dot(d_value.to(z.dtype.element_ty), write, input_precision="ieee")
        i = tl.arange(0, C)[:, None]
        j = tl.arange(0, C)[None]
        products = tl.where(i >= j, products * scale, 0.0)
        store_rows(d_p, products, token, last, head, H, tl.arange(0, C), C)
        overlap = tl.where(i > j, overlap, 0.0)
        store_rows(d_a, overlap, token, last, head, H, tl.arange(0, C), C)
        by_beta = by_beta.to(d_beta.dtype.element_ty)
        tl.store(d_beta + token * H + head, by_beta, mask=token < last)


@triton.jit
def _across(
    beta, errors, states, d_states, d_o, d_v, token, last, chunk, head, key, scale, H,
    dtype: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dQ̄, dK̄ and dK̃ [C, BK], and Σ_v dS⊙S₀ [BK]."""
    d_queries = tl.zeros((C, BK), tl.float32)
    d_keys = tl.zeros((C, BK), tl.float32)
    d_to_end = tl.zeros((C, BK), tl.float32)
    d_whole = tl.zeros((BK,), tl.float32)
    strength = load_column(beta, token, last, head, H)[:, None]
    for start in range(0, V, BV):
        value = start + tl.arange(0, BV)
        place, inside = state_tile(chunk, head, H, key, value, K, V)
        state = tl.load(states + place, mask=inside, other=0.0)
        d_after = tl.load(d_states + place, mask=inside, other=0.0)
        d_whole += tl.sum(state.to(tl.float32) * d_after.to(tl.float32), axis=1)
        d_out = load_rows(d_o, token, last, head, H, value, V).to(dtype)
        d_queries += tl.dot(d_out, tl.trans(state), input_precision="ieee")
        d_value = load_rows(d_v, token, last, head, H, value, V).to(dtype)
        d_keys -= tl.dot(d_value, tl.trans(state), input_precision="ieee")
        write = load_rows(errors, token, last, head, H, value, V).to(tl.float32) * strength
        d_to_end += tl.dot(write.to(dtype), tl.trans(d_after), input_precision="ieee")
    return d_queries * scale, d_keys, d_to_end, d_whole


@triton.jit
def _keys_and_gates(
    q, k, g, beta, errors, states, d_states, d_o, d_v, d_p, d_a, d_q, d_k, d_g, table, cu, scale, H, HQ, HK, TOKENS,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dq and dk [tokens, H, K], dg likewise, or [⌈K/BK⌉, tokens, H] parts of a shared gate's."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        dtype: tl.constexpr = states.dtype.element_ty
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        key = tl.program_id(2) * BK + tl.arange(0, BK)
        by_query, by_key, by_end, by_whole = _across(
            beta, errors, states, d_states, d_o, d_v, token, last, chunk, head, key, scale, H, dtype, K, V, C, BK, BV
        )  # fmt: skip
        gates = load_gates(g, token, last, head, H, key, K, SHARED)
        after = load_gates(g, token + 1, last, head, H, key, K, SHARED)
        decay = decay_from_start(gates)
        by_query *= decay
        by_key *= decay
        by_end *= decay_to_end(after)
        by_whole *= tl.exp(tl.sum(gates, axis=0))
        queries = load_rows(q, token, last, head // (H // HQ), HQ, key, K).to(tl.float32)
        keys = load_rows(k, token, last, head // (H // HK), HK, key, K).to(tl.float32)
        column = tl.arange(0, C)
        products = load_rows(d_p, token, last, head, H, column, C)
        overlap = load_rows(d_a, token, last, head, H, column, C)
        if SHARED:
            gate = tl.sum(gates, axis=1)
            by_query, right, left = inside_shared_back(
                by_query, by_key, queries, keys, gate, products, overlap, dtype, C
            )
        else:
            places, row_token = block_places(first, head, H, C)
            near = tl.load(d_p + places, mask=row_token < last, other=0.0)
            near_overlap = tl.load(d_a + places, mask=row_token < last, other=0.0)
            by_query, right, left = inside_channels_back(
                by_query, by_key, queries, keys, gates, after, products, overlap, near, near_overlap, dtype, C, BK
            )  # fmt: skip
        up_to = queries * by_query + keys * (right - left)
        up_to += tl.where((token == last - 1)[:, None], by_whole[None], 0.0)
        gate = tl.cumsum(up_to, axis=0, reverse=True)
        # A sum over the tokens before. As the sum up to this token less itself, it would lose a small rest to a large
        # term; and the 0 and 1 that select are exact in any precision.
        earlier = tl.where(column[:, None] > column[None], 1.0, 0.0)
        gate += tl.dot(earlier, keys * by_end, input_precision="tf32x3")
        same = tl.sum(tl.where(column[:, None] == column[None], products, 0.0), axis=1)[:, None]
        store_rows(d_q, by_query + same * keys, token, last, head, H, key, K)
        store_rows(d_k, right + left + by_end + same * queries, token, last, head, H, key, K)
        if SHARED:
            part = (tl.program_id(2).to(tl.int64) * TOKENS + token) * H + head
            tl.store(d_g + part, tl.sum(gate, axis=1), mask=token < last)
        else:
            store_rows(d_g, gate, token, last, head, H, key, K)


@triton.jit
def _sum_heads(parts, total, TOKENS, WIDTH, GROUP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """total [TOKENS, WIDTH] = Σ over the heads of a group, parts [TOKENS, GROUP, WIDTH]."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    added = tl.zeros((BT, BD), tl.float32)
    for member in range(GROUP):
        added += load_rows(parts, token, TOKENS, member, GROUP, column, WIDTH).to(tl.float32)
    store_rows(total, added, token, TOKENS, 0, 1, column, WIDTH)


_values_tuned = Tuned(
    _values,
    [
        triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (32, 4, 3), (128, 8, 1), (64, 8, 2))
    ],
    ["V"],
)


def _key_tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BK": width, "BV": value_width}, num_warps=warps, num_stages=stages)
        for width, value_width, warps, stages in sizes
    ]


# Parts of a shared gate's gradient are as many as tiles, which so have to be known beforehand: BK is 64 there. Gates of
# channels keep many more tiles alive: at 64 wide, or on four warps, more than a kilobyte of them is spilled.
_keys_and_gates_tuned = {
    False: Tuned(
        _keys_and_gates,
        _key_tiles((32, 64, 8, 1), (32, 32, 8, 1), (32, 64, 8, 2), (64, 64, 8, 1)),
        ["K", "V"],
    ),
    True: Tuned(
        _keys_and_gates,
        _key_tiles((64, 64, 8, 1), (64, 64, 8, 2), (64, 32, 8, 2)),
        ["K", "V"],
    ),
}


def values_back(
    v: Tensor, beta: Tensor, z: Tensor, errors: Tensor, d_o: Tensor, d_writes: Tensor, scale: float, table: Tensor,
    cu: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dV of every head, dβ, dP and dA."""
    heads, value_width = beta.shape[2], v.shape[3]
    d_v, d_beta = _room_of_heads(v, heads), torch.empty_like(beta)
    d_p, d_a = torch.empty_like(z), torch.empty_like(z)
    _values_tuned[(len(table), heads)](
        beta, z, errors, d_o, d_writes, d_v, d_beta, d_p, d_a, table, cu, scale, heads, V=value_width, C=CHUNK
    )
    return d_v, d_beta, d_p, d_a


def keys_and_gates_back(
    q: Tensor, k: Tensor, g: Tensor, beta: Tensor, errors: Tensor, states: Tensor, d_states: Tensor, d_o: Tensor,
    d_v: Tensor, d_p: Tensor, d_a: Tensor, scale: float, table: Tensor, cu: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq and dk of every head, and dg."""
    heads, width, value_width, shared = beta.shape[2], q.shape[3], d_v.shape[3], g.dim() == 3
    d_q, d_k = _room_of_heads(q, heads), _room_of_heads(k, heads)
    parts = (triton.cdiv(width, 64), *g.shape)
    d_g = torch.empty(parts, dtype=torch.float32, device=g.device) if shared else torch.empty_like(g)
    _keys_and_gates_tuned[shared][lambda meta: (len(table), heads, triton.cdiv(width, meta["BK"]))](
        q, k, g, beta, errors, states, d_states, d_o, d_v, d_p, d_a, d_q, d_k, d_g, table, cu, scale,
        heads, q.shape[2], k.shape[2], q.shape[0] * q.shape[1], K=width, V=value_width, SHARED=shared, C=CHUNK,
    )  # fmt: skip
    return d_q, d_k, sum_rows(d_g, g.dtype) if shared else d_g


def _room_of_heads(x: Tensor, heads: int) -> Tensor:
    """For the gradient of x [B, T, Hx, D] of every head: x's own dtype, or fp32 where heads are yet to be added."""
    dtype = x.dtype if x.shape[2] == heads else torch.float32
    return torch.empty(*x.shape[:2], heads, x.shape[3], dtype=dtype, device=x.device)


def sum_heads(parts: Tensor, x: Tensor) -> Tensor:
    """The gradient of x [B, T, Hx, D] from that of every head, parts [B, T, H, D]."""
    if parts.shape == x.shape:
        return parts
    total, (batch, time, heads, width) = torch.empty_like(x), x.shape
    rows = batch * time * heads
    _sum_heads[(triton.cdiv(rows, 32), triton.cdiv(width, 64))](
        parts, total, rows, width, GROUP=parts.shape[2] // heads, BT=32, BD=64
    )
    return total
