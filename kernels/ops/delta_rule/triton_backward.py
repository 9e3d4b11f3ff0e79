"""Gradients of the chunked delta rule, in the notation of triton_inside.py and triton_forward.py.

With F = Diag(β)·E, what the state takes in, and dS the gradient of the state after a chunk:

    dF  = scale·Pᵀ·dO + K̃·dS                                           of F where E did not depend on it
    dS₀ = exp(G_last)⊙dS + scale·Q̄ᵀ·dO − Wᵀ·Diag(β)·dF               one chunk before another
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

from kernels.launch.device import chunk_bounds, padded, sum_rows
from kernels.launch.tuning import Tuned
from kernels.ops.delta_rule.triton_forward import SCAN_TILES, Chunked, load_whole
from kernels.ops.delta_rule.triton_inside import BLOCK, block_places
from kernels.ops.delta_rule.triton_tiles import (
    CHUNK,
    decay_between,
    decay_from_start,
    decay_to_end,
    decay_to_middle,
    halves_meet,
    load_column,
    load_gates,
    load_rows,
    state_tile,
    store_rows,
)


@triton.jit
def _scan_back(
    from_start, to_end, reads, whole, beta, p, d_o, d_final, d_states, d_writes, d_initial, firsts, cu, scale, H,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """d_states [chunks, H, K, V] of the states after chunks, d_writes dF [tokens, H, V], d_initial [N, H, K, V]."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    place, inside = state_tile(sequence, head, H, key, value, K, V)
    d_state = tl.zeros((BK, BV), tl.float32)
    if d_final is not None:
        d_state += tl.load(d_final + place, mask=inside, other=0.0).to(tl.float32)
    begin = tl.load(cu + sequence).to(tl.int64)
    end = tl.load(cu + sequence + 1).to(tl.int64)
    first_chunk = tl.load(firsts + sequence)
    chunks = tl.load(firsts + sequence + 1) - first_chunk
    for back in range(chunks):
        step = chunks - 1 - back
        chunk = (first_chunk + step).to(tl.int64)
        at, _ = state_tile(chunk, head, H, key, value, K, V)
        d_after = d_state.to(d_states.dtype.element_ty)
        tl.store(d_states + at, d_after, mask=inside)
        token = begin + step * C + tl.arange(0, C)
        d_out = load_rows(d_o, token, end, head, H, value, V).to(p.dtype.element_ty)
        products = load_rows(p, token, end, head, H, tl.arange(0, C), C)
        d_write = tl.dot(tl.trans(products), d_out, input_precision="ieee") * scale
        keys = load_rows(to_end, token, end, head, H, key, K)
        d_write += tl.dot(keys, d_after, input_precision="ieee")
        store_rows(d_writes, d_write, token, end, head, H, value, V)
        d_error = (d_write * load_column(beta, token, end, head, H)[:, None]).to(p.dtype.element_ty)
        queries = load_rows(from_start, token, end, head, H, key, K)
        read = load_rows(reads, token, end, head, H, key, K)
        d_state *= load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        d_state += tl.dot(tl.trans(queries), d_out, input_precision="ieee") * scale
        d_state -= tl.dot(tl.trans(read), d_error, input_precision="ieee")
    if d_initial is not None:
        tl.store(d_initial + place, d_state, mask=inside)


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
def _inside_shared(queries, keys, gate, d_p, d_a, dtype: tl.constexpr, C: tl.constexpr):
    """Through P and A of tokens i > j under gates [C]: gradients of queries, of keys as row i and as row j."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    between = tl.where(i > j, decay_between(gate, C), 0.0)
    d_p = (d_p * between).to(dtype)
    d_a = (d_a * between).to(dtype)
    narrow = keys.to(dtype)
    d_q = tl.dot(d_p, narrow, input_precision="ieee")
    d_right = tl.dot(d_a, narrow, input_precision="ieee")
    d_left = tl.dot(tl.trans(d_p), queries.to(dtype), input_precision="ieee")
    d_left += tl.dot(tl.trans(d_a), narrow, input_precision="ieee")
    return d_q, d_right, d_left


@triton.jit
def _inside_channels(
    queries, keys, gates, after, d_p, d_a, d_p_blocks, d_a_blocks,
    dtype: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Through P and A of tokens i > j under gates [C, BK], level by level of halves; d_p, d_a [C, C], and their
    blocks on the diagonal [C/16, 16, 16]."""
    d_q = tl.zeros((C, BK), tl.float32)
    d_right = tl.zeros((C, BK), tl.float32)
    d_left = tl.zeros((C, BK), tl.float32)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for level in tl.static_range(4):
        decay = decay_to_middle(gates, after, 2**level, C, BK)
        k = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        q = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        meet = halves_meet(row, col, 2**level)
        p = tl.where(meet, d_p_blocks, 0.0).to(dtype)
        a = tl.where(meet, d_a_blocks, 0.0).to(dtype)
        left = tl.dot(tl.permute(p, (0, 2, 1)), q, input_precision="ieee")
        left += tl.dot(tl.permute(a, (0, 2, 1)), k, input_precision="ieee")
        d_left += decay * tl.reshape(left, (C, BK))
        d_q += decay * tl.reshape(tl.dot(p, k, input_precision="ieee"), (C, BK))
        d_right += decay * tl.reshape(tl.dot(a, k, input_precision="ieee"), (C, BK))
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        decay = decay_to_middle(gates, after, BLOCK * 2**level, C, BK)
        k = (keys * decay).to(dtype)
        q = (queries * decay).to(dtype)
        meet = halves_meet(row, col, BLOCK * 2**level)
        p = tl.where(meet, d_p, 0.0).to(dtype)
        a = tl.where(meet, d_a, 0.0).to(dtype)
        left = tl.dot(tl.trans(p), q, input_precision="ieee")
        left += tl.dot(tl.trans(a), k, input_precision="ieee")
        d_left += decay * left
        d_q += decay * tl.dot(p, k, input_precision="ieee")
        d_right += decay * tl.dot(a, k, input_precision="ieee")
    return d_q, d_right, d_left


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
        queries = load_rows(q, token, last, head // (H // HQ), HQ, key, K).to(tl.float32)
        keys = load_rows(k, token, last, head // (H // HK), HK, key, K).to(tl.float32)
        gates = load_gates(g, token, last, head, H, key, K, SHARED)
        after = load_gates(g, token + 1, last, head, H, key, K, SHARED)
        by_query, by_key, by_end, by_whole = _across(
            beta, errors, states, d_states, d_o, d_v, token, last, chunk, head, key, scale, H, dtype, K, V, C, BK, BV
        )  # fmt: skip
        by_whole *= tl.exp(tl.sum(gates, axis=0))
        decay = decay_from_start(gates)
        by_end *= decay_to_end(after)
        column = tl.arange(0, C)
        products = load_rows(d_p, token, last, head, H, column, C)
        overlap = load_rows(d_a, token, last, head, H, column, C)
        if SHARED:
            inside, right, left = _inside_shared(
                queries, keys, tl.sum(gates, axis=1), products, overlap, dtype, C
            )
        else:
            places, row_token = block_places(first, head, H, C)
            near = tl.load(d_p + places, mask=row_token < last, other=0.0)
            near_overlap = tl.load(d_a + places, mask=row_token < last, other=0.0)
            inside, right, left = _inside_channels(
                queries, keys, gates, after, products, overlap, near, near_overlap, dtype, C, BK
            )
        by_query = by_query * decay + inside
        right += by_key * decay
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


_scan_back_tuned = Tuned(_scan_back, SCAN_TILES, ["K", "V", "SHARED"])
_values_tuned = Tuned(
    _values,
    [
        triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (32, 4, 3), (128, 8, 1), (64, 8, 2))
    ],
    ["V"],
)
_KEY_TILES = [
    triton.Config({"BK": width, "BV": value_width}, num_warps=warps, num_stages=stages)
    for width, value_width, warps, stages in ((64, 64, 8, 1), (32, 64, 4, 2), (32, 32, 4, 1), (32, 64, 8, 1))
]
# Parts of a shared gate's gradient are as many as tiles, which so have to be known beforehand.
_keys_and_gates_tuned = {
    False: Tuned(_keys_and_gates, _KEY_TILES, ["K", "V"]),
    True: Tuned(_keys_and_gates, [c for c in _KEY_TILES if c.kwargs["BK"] == 64], ["K", "V", "SHARED"]),
}


def scan_back(
    x: Chunked, beta: Tensor, p: Tensor, d_o: Tensor, d_final: Tensor | None, d_initial: Tensor | None,
    scale: float, firsts: Tensor, cu: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dS of all chunks and dF, in the inputs' dtype; fills `d_initial` if there is one."""
    heads, width, value_width = beta.shape[2], x.reads.shape[-1], x.values.shape[-1]
    shape = (x.whole.shape[0], heads, width, value_width)
    d_states = torch.empty(shape, dtype=x.reads.dtype, device=x.reads.device)
    d_writes = torch.empty_like(x.values)
    _scan_back_tuned[lambda meta: (len(cu) - 1, heads, triton.cdiv(value_width, meta["BV"]))](
        x.from_start, x.to_end, x.reads, x.whole, beta, p, d_o, d_final, d_states, d_writes, d_initial, firsts, cu,
        scale, heads, K=width, V=value_width, SHARED=x.whole.shape[2] == 1 < width, C=CHUNK, BK=padded(width),
    )  # fmt: skip
    return d_states, d_writes


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
