"""Gradients of the chunked delta rule, in the notation of triton_forward.py.

From F = Diag(β)·E, and dS and dF of the recurrence backward in time, all chunks at once:

    dF′ = dF − Zᵀ·Diag(β)·dF       dV = Diag(β)·dF′      dβ = Σ_v dF′⊙E
    dP  = scale·dO·Fᵀ    dA = −dV·Fᵀ    dQ̄ = scale·dO·S₀ᵀ    dK̄ = −dV·S₀ᵀ    dK̃ = F·dSᵀ

(N·E = V − K̄·S₀, N = I + A·Diag(β), is differentiated as written, so that no inverse needs a gradient.) The log decay
of tokens i > j is the sum of gates up to i less the sum up to j, so that each factor contributes to the gates its
product with its own gradient, summed from the chunk's end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_forward import (
    BLOCK,
    CHUNK,
    WALK_TILES,
    ChunkOperands,
    ChunkStates,
    Inputs,
    StateGradients,
    ValueGradients,
    across_middle,
    block_places,
    decay_between,
    decay_from_start,
    decay_of,
    decay_to_end,
    decay_to_middle,
    empty_for_heads,
    empty_states,
    from_token,
    gate_gradient,
    grid_of_walk,
    head_state,
    load_gates,
    load_shared_gates,
    load_whole,
    outer_state,
    sequence_chunks,
    shared_decays,
    sum_tokens,
)
from kernels.triton_common import ChunkLayout, chunk_bounds, padded, sum_rows
from kernels.triton_common.tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_head_scalars,
    store_matrix,
)
from kernels.triton_common.tuning import Tuned

# The recurrence backward in time: gradients of states, from the last of a sequence's chunks to the first.
#
# With dS the gradient of the state after a chunk, and dF that of F, which is written into it, with E taken as
# independent of F:
#
#     dF = scale·Pᵀ·dO + K̃·dS        dS₀ = exp(G_last)⊙dS + scale·Q̄ᵀ·dO − Wᵀ·Diag(β)·dF


@triton.jit
def _inter_chunk_backward(
    queries, keys, from_start, to_end, reads, whole, beta, p, d_o, d_final, d_states, d_writes, d_initial, firsts, cu,
    scale, H, GQ: tl.constexpr, GK: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of the states after chunks and of F, from the last chunk to the first.

    inputs     queries, keys, from_start, to_end, reads, whole as in `ChunkOperands`; beta [tokens, H];
               p P [tokens, H, C]; d_o dO [tokens, H, V]; d_final [N, H, K, V] or None
    outputs    d_states dS [chunks, H, K, V]; d_writes dF [tokens, H, V]; d_initial [N, H, K, V] or None
    layout     firsts, cu
    sizes      scale; H heads
    constants  as in `_inter_chunk`
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype: tl.constexpr = reads.dtype.element_ty
    token = tl.arange(0, C)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    d_state = outer_state(d_final, sequence, head, H, key, value, K, V, BK, BV)
    begin, end, first_chunk, chunks = sequence_chunks(firsts, cu, sequence)
    for back in range(chunks):
        step = chunks - 1 - back
        chunk = (first_chunk + step).to(tl.int64)
        d_after = d_state.to(d_states.dtype.element_ty)
        store_matrix(head_state(d_states, chunk, head, H, K, V), d_after, key, value, K, V)
        first = begin + step * C
        last = tl.minimum(end - first, C).to(tl.int32)
        # dF = scale·Pᵀ·dO + K̃·dS
        ends = load_head_rows(from_token(keys, first, H // GK, K), token, last, head // GK, H // GK, key, K)
        d_write = tl.dot(ends.to(dtype), d_after, input_precision="ieee")
        if SHARED:
            d_write *= load_head_scalars(from_token(to_end, first, H, 1), token, last, head, H)[:, None]
        d_out = load_head_rows(from_token(d_o, first, H, V), token, last, head, H, value, V).to(dtype)
        products = load_head_rows(from_token(p, first, H, C), token, last, head, H, token, C)
        d_write += tl.dot(tl.trans(products), d_out, input_precision="ieee") * scale
        store_head_rows(from_token(d_writes, first, H, V), d_write, token, last, head, H, value, V)
        # dS₀ = exp(G_last)⊙dS + scale·Q̄ᵀ·dO − Wᵀ·Diag(β)·dF
        d_error = d_write * load_head_scalars(from_token(beta, first, H, 1), token, last, head, H)[:, None]
        query = load_head_rows(
            from_token(queries, first, H // GQ, K), token, last, head // GQ, H // GQ, key, K
        )
        read = load_head_rows(from_token(reads, first, H, K), token, last, head, H, key, K)
        if SHARED:
            decay = load_head_scalars(from_token(from_start, first, H, 1), token, last, head, H)
            d_out = (d_out * decay[:, None]).to(dtype)
        d_state *= load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        d_state += tl.dot(tl.trans(query.to(dtype)), d_out, input_precision="ieee") * scale
        d_state -= tl.dot(tl.trans(read), d_error.to(dtype), input_precision="ieee")
    if d_initial is not None:
        store_matrix(head_state(d_initial, sequence, head, H, K, V), d_state, key, value, K, V)


_inter_chunk_backward_tuned = Tuned(_inter_chunk_backward, WALK_TILES, ["K", "V", "SHARED"])


def inter_chunk_backward(
    x: ChunkOperands, beta: Tensor, p: Tensor, d_o: Tensor, d_final: Tensor | None, d_initial: Tensor | None,
    scale: float, layout: ChunkLayout,
) -> StateGradients:  # fmt: skip
    """Compute dS of all chunks and dF; fill `d_initial` [N, H, K, V] if there is one."""
    gradients = StateGradients(empty_states(x), torch.empty_like(x.values))
    _inter_chunk_backward_tuned[grid_of_walk(x, layout)](
        x.queries, x.keys, x.from_start, x.to_end, x.reads, x.whole, beta, p, d_o, d_final, *gradients, d_initial,
        layout.firsts, layout.cu, scale, x.reads.shape[2],
        **x.groups, **x.widths, SHARED=x.shared, C=CHUNK, BK=padded(x.widths["K"]),
    )  # fmt: skip
    return gradients


# Gradients of values and β, and of P and A.


@triton.jit
def _values(
    beta, z, errors, d_o, d_writes, d_v, d_beta, d_p, d_a, table, cu, scale, H,
    V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dV, dβ, dP and dA of one chunk and head.

    inputs     beta [tokens, H]; z Z [tokens, H, C]; errors E, d_o dO, d_writes dF [tokens, H, V]
    outputs    d_v [tokens, H, V]; d_beta [tokens, H]; d_p, d_a [tokens, H, C]
    layout     table, cu
    sizes      scale; H heads
    constants  V width; C tokens a chunk; BV columns a tile
    """
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        beta, z = from_token(beta, first, H, 1), from_token(z, first, H, C)
        errors, d_o = from_token(errors, first, H, V), from_token(d_o, first, H, V)
        d_writes, d_v = from_token(d_writes, first, H, V), from_token(d_v, first, H, V)
        d_p, d_a = from_token(d_p, first, H, C), from_token(d_a, first, H, C)
        d_beta = from_token(d_beta, first, H, 1)
        strength = load_head_scalars(beta, token, last, head, H)[:, None]
        triangle = tl.trans(load_head_rows(z, token, last, head, H, token, C))
        products, overlap = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        by_beta = tl.zeros((C,), tl.float32)
        for start in range(0, V, BV):
            value = start + tl.arange(0, BV)
            # dF′ = dF − Zᵀ·Diag(β)·dF
            d_write = load_head_rows(d_writes, token, last, head, H, value, V).to(tl.float32)
            d_error = (d_write * strength).to(z.dtype.element_ty)
            d_write -= tl.dot(triangle, d_error, input_precision="ieee")
            # dβ = Σ_v dF′⊙E
            error = load_head_rows(errors, token, last, head, H, value, V).to(tl.float32)
            by_beta += tl.sum(d_write * error, axis=1)
            # dV = Diag(β)·dF′
            d_value = d_write * strength
            store_head_rows(d_v, d_value, token, last, head, H, value, V)
            # dP = scale·dO·Fᵀ,  dA = −dV·Fᵀ,  F = Diag(β)·E
            write = tl.trans((error * strength).to(z.dtype.element_ty))
            d_out = load_head_rows(d_o, token, last, head, H, value, V).to(z.dtype.element_ty)
            products += tl.dot(d_out, write, input_precision="ieee")
            overlap -= tl.dot(d_value.to(z.dtype.element_ty), write, input_precision="ieee")
        i = tl.arange(0, C)[:, None]
        j = tl.arange(0, C)[None]
        products = tl.where(i >= j, products * scale, 0.0)
        store_head_rows(d_p, products, token, last, head, H, tl.arange(0, C), C)
        overlap = tl.where(i > j, overlap, 0.0)
        store_head_rows(d_a, overlap, token, last, head, H, tl.arange(0, C), C)
        store_head_scalars(d_beta, by_beta, token, last, head, H)


_values_tuned = Tuned(
    _values,
    [
        triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (32, 4, 3), (128, 8, 1), (64, 8, 2))
    ],
    ["V"],
)


def values_backward(
    x: Inputs, z: Tensor, errors: Tensor, d_o: Tensor, d_writes: Tensor, scale: float, layout: ChunkLayout
) -> ValueGradients:
    """Compute dV [B, T, H, V] of every head, dβ [B, T, H], dP and dA [B·T, H, C], C = 64.

    z Z [B·T, H, C]; errors E [B·T, H, V]; d_o dO [B, T, H, V]; d_writes dF [B·T, H, V].
    """
    gradients = ValueGradients(
        empty_for_heads(x.v, x.heads), torch.empty_like(x.beta), torch.empty_like(z), torch.empty_like(z)
    )
    _values_tuned[(layout.chunks, x.heads)](
        x.beta, z, errors, d_o, d_writes, *gradients, layout.table, layout.cu, scale, x.heads, V=x.widths["V"], C=CHUNK
    )  # fmt: skip
    return gradients


# Gradients of queries and keys through P and A; those of the gates follow from them in `_keys_and_gates`.


@triton.jit
def intra_chunk_backward_shared(
    d_q, d_right, queries, keys, gate, d_p, d_a, dtype: tl.constexpr, C: tl.constexpr
):
    """Gradients through P and A of tokens i > j under shared gates [C]: d_q and d_right, of keys as row i, with these
    added, and d_left, of keys as row j."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    # dP_ij and dA_ij under the decay exp(Σ_{j<l≤i} g_l) of i > j
    between = tl.where(i > j, decay_between(gate, C), 0.0)
    d_p = (d_p * between).to(dtype)
    d_a = (d_a * between).to(dtype)
    narrow = keys.to(dtype)
    # dq_i = Σ_j dP_ij·k_j
    d_q += tl.dot(d_p, narrow, input_precision="ieee")
    # dk_i = Σ_j dA_ij·k_j
    d_right += tl.dot(d_a, narrow, input_precision="ieee")
    # dk_j = Σ_i dP_ij·q_i + Σ_i dA_ij·k_i
    d_left = tl.dot(tl.trans(d_p), queries.to(dtype), input_precision="ieee")
    d_left += tl.dot(tl.trans(d_a), narrow, input_precision="ieee")
    return d_q, d_right, d_left


@triton.jit
def intra_chunk_backward_channels(
    d_q, d_right, queries, keys, gates, d_p, d_a, d_p_blocks, d_a_blocks,
    dtype: tl.constexpr, gate_type: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients through P and A under gates of channels [C, BK], level by level.

    inputs     d_q, d_right [C, BK], added to; queries, keys, gates [C, BK]
    gradients  d_p, d_a [C, C], and their blocks on the diagonal [C/16, 16, 16]
    constants  dtype of products; gate_type, that gates are stored in; C tokens a chunk; BK columns
    returns    d_q, d_right and d_left [C, BK]
    """
    d_left = tl.zeros((C, BK), tl.float32)
    # Tokens i > j of two halves of 1 … 8 tokens, q and k decayed to their middle:
    # dq_i = decay_i⊙Σ_j dP_ij·k_j    dk_i = decay_i⊙Σ_j dA_ij·k_j    dk_j = decay_j⊙Σ_i (dP_ij·q_i + dA_ij·k_i)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for level in tl.static_range(4):
        decay = decay_to_middle(gates, gate_type, 2**level, C)
        k = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        q = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        meet = across_middle(row, col, 2**level)
        p = tl.where(meet, d_p_blocks, 0.0).to(dtype)
        a = tl.where(meet, d_a_blocks, 0.0).to(dtype)
        left = tl.dot(tl.permute(p, (0, 2, 1)), q, input_precision="ieee")
        left += tl.dot(tl.permute(a, (0, 2, 1)), k, input_precision="ieee")
        d_left += decay * tl.reshape(left, (C, BK))
        d_q += decay * tl.reshape(tl.dot(p, k, input_precision="ieee"), (C, BK))
        d_right += decay * tl.reshape(tl.dot(a, k, input_precision="ieee"), (C, BK))
    # likewise of two halves of 16 and of 32 tokens
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        decay = decay_to_middle(gates, gate_type, BLOCK * 2**level, C)
        k = (keys * decay).to(dtype)
        q = (queries * decay).to(dtype)
        meet = across_middle(row, col, BLOCK * 2**level)
        p = tl.where(meet, d_p, 0.0).to(dtype)
        a = tl.where(meet, d_a, 0.0).to(dtype)
        left = tl.dot(tl.trans(p), q, input_precision="ieee")
        left += tl.dot(tl.trans(a), k, input_precision="ieee")
        d_left += decay * left
        d_q += decay * tl.dot(p, k, input_precision="ieee")
        d_right += decay * tl.dot(a, k, input_precision="ieee")
    return d_q, d_right, d_left


# Gradients of queries, keys and gates: through P and A, and through the states.


@triton.jit
def _through_states(
    beta, errors, states, d_states, d_o, d_v, token, last, chunk, head, key, scale, H,
    dtype: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """The gradients through the states: dQ̄, dK̄ and dK̃ [C, BK], and Σ_v dS⊙S₀ [C, BK], in every row the same.

    SHARED: that sum is over all channels, [1, 1].

    inputs     beta, errors E, states S₀, d_states dS, d_o dO, d_v dV
    place      token [C] and last, counted from the chunk's first token, where pointers are; chunk, head, and key [BK],
               the columns of this tile
    sizes      scale; H heads
    constants  dtype of products; K, V widths; C tokens a chunk; BK, BV sides of a state's tile
    """
    d_queries = tl.zeros((C, BK), tl.float32)
    d_keys = tl.zeros((C, BK), tl.float32)
    d_to_end = tl.zeros((C, BK), tl.float32)
    d_whole = tl.zeros((1, 1) if SHARED else (C, BK), tl.float32)
    every = tl.full((C, BV), True, tl.int1)
    strength = load_head_scalars(beta, token, last, head, H)[:, None]
    for start in range(0, V, BV):
        value = start + tl.arange(0, BV)
        state = load_matrix(head_state(states, chunk, head, H, K, V), key, value, K, V)
        d_after = load_matrix(head_state(d_states, chunk, head, H, K, V), key, value, K, V)
        # Σ_v dS⊙S₀, of exp(G_last)
        both = state.to(tl.float32) * d_after.to(tl.float32)
        d_whole += tl.sum(both) if SHARED else sum_tokens(every, tl.trans(both))
        # dQ̄ = scale·dO·S₀ᵀ
        d_out = load_head_rows(d_o, token, last, head, H, value, V).to(dtype)
        d_queries += tl.dot(d_out, tl.trans(state), input_precision="ieee")
        # dK̄ = −dV·S₀ᵀ
        d_value = load_head_rows(d_v, token, last, head, H, value, V).to(dtype)
        d_keys -= tl.dot(d_value, tl.trans(state), input_precision="ieee")
        # dK̃ = F·dSᵀ,  F = Diag(β)·E
        write = load_head_rows(errors, token, last, head, H, value, V).to(tl.float32) * strength
        d_to_end += tl.dot(write.to(dtype), tl.trans(d_after), input_precision="ieee")
    return d_queries * scale, d_keys, d_to_end, d_whole


@triton.jit
def _keys_and_gates(
    q, k, g, beta, errors, states, d_states, d_o, d_v, d_p, d_a, d_q, d_k, d_g, table, cu, scale, H, HQ, HK, TOKENS,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg of one chunk and head, BK columns.

    inputs     q, k, g, beta as in `Inputs`; errors E, d_o dO, d_v dV [tokens, H, V]; states S₀,
               d_states dS [chunks, H, K, V]; d_p dP, d_a dA [tokens, H, C]
    outputs    d_q, d_k [tokens, H, K]; d_g [tokens, H, K], or [⌈K/BK⌉, tokens, H], parts of a shared gate's
    layout     table, cu
    sizes      scale; H, HQ, HK heads; TOKENS
    constants  K, V widths; SHARED: one gate a head; C tokens a chunk; BK, BV sides of a state's tile
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        dtype: tl.constexpr = states.dtype.element_ty
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        q, k = from_token(q, first, HQ, K), from_token(k, first, HK, K)
        g, beta = from_token(g, first, H, 1 if SHARED else K), from_token(beta, first, H, 1)
        errors, d_o = from_token(errors, first, H, V), from_token(d_o, first, H, V)
        d_v = from_token(d_v, first, H, V)
        d_p, d_a = from_token(d_p, first, H, C), from_token(d_a, first, H, C)
        d_q, d_k = from_token(d_q, first, H, K), from_token(d_k, first, H, K)
        key = tl.program_id(2) * BK + tl.arange(0, BK)
        by_query, by_key, by_end, by_whole = _through_states(
            beta, errors, states, d_states, d_o, d_v, token, last, chunk, head, key, scale, H, dtype, K, V,
            SHARED, C, BK, BV,
        )  # fmt: skip
        # Through Q̄ = exp(G)⊙Q, K̄ = exp(G)⊙K, K̃ = exp(G_last − G)⊙K and exp(G_last)
        gate_type: tl.constexpr = g.dtype.element_ty
        if SHARED:
            decay, to_last, whole = shared_decays(g, token, last, head, H)
            decay, to_last = decay[:, None], to_last[:, None]
        else:
            gates = load_gates(g, token, last, head, H, key, K)
            decay, to_last = decay_from_start(gates, gate_type, C), decay_to_end(gates, gate_type, C)
            whole = decay_of(tl.sum(gates, axis=0))
        by_query *= decay
        by_key *= decay
        by_end *= to_last
        by_whole *= whole[None]
        queries = load_head_rows(q, token, last, head // (H // HQ), HQ, key, K).to(tl.float32)
        keys = load_head_rows(k, token, last, head // (H // HK), HK, key, K).to(tl.float32)
        # Through P_ij and A_ij, i > j: `right` is the gradient of k_i, `left` that of k_j
        column = tl.arange(0, C)
        products = load_head_rows(d_p, token, last, head, H, column, C)
        overlap = load_head_rows(d_a, token, last, head, H, column, C)
        if SHARED:
            gate = load_shared_gates(g, token, last, head, H)
            by_query, right, left = intra_chunk_backward_shared(
                by_query, by_key, queries, keys, gate, products, overlap, dtype, C
            )
        else:
            places, row_token = block_places(head, H, C)
            near = tl.load(d_p + places, mask=row_token < last, other=0.0)
            near_overlap = tl.load(d_a + places, mask=row_token < last, other=0.0)
            by_query, right, left = intra_chunk_backward_channels(
                by_query, by_key, queries, keys, gates, products, overlap, near, near_overlap, dtype, gate_type, C, BK
            )  # fmt: skip
        # dg_l = Σ_{i≥l} (q_i⊙dq_i + k_i⊙dk_i − k_i⊙dk_i as row j) + Σ_{j<l} k_j⊙dK̃_j + exp(G_last)'s
        up_to = queries * by_query + keys * (right - left)
        gate = gate_gradient(up_to, keys * by_end, by_whole, C, SHARED)
        # P_ii = q_i·k_i has no gate: dq_i += dP_ii·k_i,  dk_i += dP_ii·q_i
        diagonal = d_p + (token * H + head) * C + column
        same = tl.load(diagonal, mask=token < last, other=0.0).to(tl.float32)[:, None]
        store_head_rows(d_q, by_query + same * keys, token, last, head, H, key, K)
        store_head_rows(d_k, right + left + by_end + same * queries, token, last, head, H, key, K)
        if SHARED:
            part = tl.program_id(2).to(tl.int64) * TOKENS + first
            store_head_scalars(from_token(d_g, part, H, 1), gate, token, last, head, H)
        else:
            store_head_rows(from_token(d_g, first, H, K), gate, token, last, head, H, key, K)


def _key_tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BK": width, "BV": value_width}, num_warps=warps, num_stages=stages)
        for width, value_width, warps, stages in sizes
    ]


# A shared gate's gradient has one part a tile, and their number must be known beforehand: BK is 64 there. Gates of
# channels need many more tiles at a time, and 32 columns are what four warps hold.
_keys_and_gates_tuned = {
    False: Tuned(
        _keys_and_gates,
        _key_tiles((32, 64, 4, 1), (32, 32, 4, 1), (32, 64, 8, 1), (32, 64, 8, 2)),
        ["K", "V"],
    ),
    True: Tuned(
        _keys_and_gates,
        _key_tiles((64, 64, 4, 1), (64, 64, 8, 1), (64, 64, 8, 2)),
        ["K", "V"],
    ),
}


def keys_and_gates_backward(
    x: Inputs, forward: ChunkStates, back: StateGradients, found: ValueGradients, d_o: Tensor, scale: float,
    layout: ChunkLayout,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute dq and dk [B, T, H, K] of every head, and dg in g's shape: [B, T, H], or [B, T, H, K].

    d_o [B, T, H, V] is the output's gradient; the tuples are
    explained in triton_forward.py.
    """
    q, k, _, g, beta = x
    (heads, q_heads, k_heads, _), width = x.head_counts, x.widths["K"]
    d_q, d_k = empty_for_heads(q, heads), empty_for_heads(k, heads)
    parts = (triton.cdiv(width, 64), *g.shape)
    d_g = torch.empty(parts, dtype=torch.float32, device=g.device) if x.shared else torch.empty_like(g)
    _keys_and_gates_tuned[x.shared][lambda meta: (layout.chunks, heads, triton.cdiv(width, meta["BK"]))](
        q, k, g, beta, forward.errors, forward.states, back.d_states, d_o, found.d_v, found.d_p, found.d_a,
        d_q, d_k, d_g, layout.table, layout.cu, scale, heads, q_heads, k_heads, q.shape[0] * q.shape[1],
        **x.widths, SHARED=x.shared, C=CHUNK,
    )  # fmt: skip
    return d_q, d_k, sum_rows(d_g, g.dtype) if x.shared else d_g
