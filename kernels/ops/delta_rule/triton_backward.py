"""Gradients of the chunked delta rule, in the notation of triton_intra_chunk.py and triton_operands.py.

The gradients of queries, keys and gates are here, those of values and β in triton_backward_values.py.

From F = Diag(β)·E, and dS and dF of triton_inter_chunk_backward.py, all chunks at once:

    dF′ = dF − Zᵀ·Diag(β)·dF       dV = Diag(β)·dF′      dβ = Σ_v dF′⊙E
    dP  = scale·dO·Fᵀ    dA = −dV·Fᵀ    dQ̄ = scale·dO·S₀ᵀ    dK̄ = −dV·S₀ᵀ    dK̃ = F·dSᵀ

(N·E = V − K̄·S₀ is differentiated as written, so that no inverse needs a gradient.) The log decay of tokens i > j is
the sum of gates up to i less the sum up to j, so that each factor contributes to the gates its product with its own
gradient, summed from the chunk's end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkStates, Inputs, StateGradients, ValueGradients
from kernels.ops.delta_rule.triton_heads import empty_for_heads
from kernels.ops.delta_rule.triton_intra_chunk_backward import (
    intra_chunk_backward_channels,
    intra_chunk_backward_shared,
)
from kernels.ops.delta_rule.triton_tiles import (
    CHUNK,
    block_places,
    decay_from_start,
    decay_of,
    decay_to_end,
    from_token,
    gate_gradient,
    head_state,
    load_gates,
    load_shared_gates,
    shared_decays,
    sum_tokens,
)
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds, sum_rows
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_head_scalars,
)
from kernels.triton_common.tuning import Tuned


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

    d_o [B, T, H, V] is the output's gradient; x, forward, back and found are explained in triton_arguments.py.
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
