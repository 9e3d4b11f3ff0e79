"""The inter-chunk backward: gradients of states, from the last of a sequence's chunks to the first.

With the notation of triton_operands.py, dS the gradient of the state after a chunk, and dF that of F = Diag(β)·E,
which is written into it, with E taken as independent of F:

    dF = scale·Pᵀ·dO + K̃·dS        dS₀ = exp(G_last)⊙dS + scale·Q̄ᵀ·dO − Wᵀ·Diag(β)·dF
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkOperands, StateGradients
from kernels.ops.delta_rule.triton_inter_chunk import (
    WALK_TILES,
    empty_states,
    grid_of_walk,
    load_whole,
    outer_state,
    sequence_chunks,
)
from kernels.ops.delta_rule.triton_tiles import CHUNK, from_token, head_state
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import padded
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    store_head_rows,
    store_matrix,
)
from kernels.triton_common.tuning import Tuned


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
    found = StateGradients(empty_states(x), torch.empty_like(x.values))
    _inter_chunk_backward_tuned[grid_of_walk(x, layout)](
        x.queries, x.keys, x.from_start, x.to_end, x.reads, x.whole, beta, p, d_o, d_final, *found, d_initial,
        layout.firsts, layout.cu, scale, x.reads.shape[2],
        **x.groups, **x.widths, SHARED=x.shared, C=CHUNK, BK=padded(x.widths["K"]),
    )  # fmt: skip
    return found
