"""The operands of the inter-chunk recurrence, of all chunks at once.

With the notation of triton_intra_chunk.py and triton_triangle.py, G_i the sum of a chunk's gates up to token i, S₀ the
state that the chunk starts from, K̄ = exp(G)⊙K, Q̄ = exp(G)⊙Q, and K̃ = exp(G_last − G)⊙K:

    W = (I − Z·Diag(β))·K̄      U = (I − Z·Diag(β))·V
    E = U − W·S₀                S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E      one chunk after another: triton_inter_chunk.py
    o = scale·(Q̄·S₀ + P·Diag(β)·E)

Where a head's channels share one gate, exp(G) and exp(G_last − G) are numbers a token: these are written, and neither Q̄
nor K̃.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkOperands, Inputs
from kernels.ops.delta_rule.triton_tiles import (
    CHUNK,
    decay_from_start,
    decay_to_end,
    from_token,
    load_gates,
    shared_decays,
)
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    store_head_rows,
    store_head_scalars,
)
from kernels.triton_common.tuning import Tuned


@triton.jit
def write_operands(
    q, k, v, g, weighted, queries, keys, from_start, to_end, reads, values, whole, first, last, chunk, head,
    H, HQ, HK, HV, dtype: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Write all of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g as in `Inputs`, from the chunk's first token on; weighted Z·Diag(β) [C, C] in fp32
    outputs    queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    place      first token of the chunk and last, counted from it; chunk, head
    sizes      H, HQ, HK, HV heads
    constants  dtype of products; K, V widths; SHARED: one gate a head; C tokens a chunk; BK columns a tile
    """
    token = tl.arange(0, C)
    reads, values = from_token(reads, first, H, K), from_token(values, first, H, V)
    # (I + A·Diag(β))⁻¹ = I − Z·Diag(β)
    inverse = tl.where(token[:, None] == token[None], 1.0, -weighted)
    if SHARED:
        # exp(G), exp(G_last − G) and exp(G_last)
        decay, to_last, all_of_it = shared_decays(g, token, last, head, H)
        store_head_scalars(from_token(from_start, first, H, 1), decay, token, last, head, H)
        store_head_scalars(from_token(to_end, first, H, 1), to_last, token, last, head, H)
        tl.store(whole + chunk * H + head + tl.arange(0, 1), all_of_it)
        # W = (I − Z·Diag(β))·Diag(exp(G))·K
        of_keys = (inverse * decay[None]).to(dtype)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            key = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(dtype)
            read = tl.dot(of_keys, key, input_precision="ieee")
            store_head_rows(reads, read, token, last, head, H, column, K)
    else:
        queries, keys = from_token(queries, first, H, K), from_token(keys, first, H, K)
        is_last = (token == C - 1)[:, None]  # or beyond the sequence's end, where gates are 0
        of_keys = inverse.to(dtype)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            gates = load_gates(g, token, last, head, H, column, K)
            decay = decay_from_start(gates, g.dtype.element_ty, C)
            # Q̄ = exp(G)⊙Q
            query = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
            store_head_rows(queries, query * decay, token, last, head, H, column, K)
            # K̃ = exp(G_last − G)⊙K
            key = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
            ends = key * decay_to_end(gates, g.dtype.element_ty, C)
            store_head_rows(keys, ends, token, last, head, H, column, K)
            # W = (I − Z·Diag(β))·K̄,  K̄ = exp(G)⊙K
            read = tl.dot(of_keys, (key * decay).to(dtype), input_precision="ieee")
            store_head_rows(reads, read, token, last, head, H, column, K)
            # exp(G_last)
            place = tl.broadcast_to((whole + (chunk * H + head) * K + column)[None], (C, BK))
            tl.store(place, decay, mask=is_last & (column < K)[None])
    # U = (I − Z·Diag(β))·V
    inverse = inverse.to(dtype)
    for start in range(0, V, BK):
        column = start + tl.arange(0, BK)
        value = load_head_rows(v, token, last, head // (H // HV), HV, column, V).to(dtype)
        seen = tl.dot(inverse, value, input_precision="ieee")
        store_head_rows(values, seen, token, last, head, H, column, V)


@triton.jit
def _operands(
    q, k, v, g, beta, z, queries, keys, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g, beta as in `Inputs`; z Z [tokens, H, C]
    outputs    queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    layout     table, cu
    sizes      H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; C tokens a chunk; BK columns a tile
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        q, k = from_token(q, first, HQ, K), from_token(k, first, HK, K)
        v, g = from_token(v, first, HV, V), from_token(g, first, H, 1 if SHARED else K)
        # Z·Diag(β)
        weighted = load_head_rows(from_token(z, first, H, C), token, last, head, H, token, C).to(tl.float32)
        weighted *= load_head_scalars(from_token(beta, first, H, 1), token, last, head, H)[None]
        write_operands(
            q, k, v, g, weighted, queries, keys, from_start, to_end, reads, values, whole, first, last, chunk, head,
            H, HQ, HK, HV, z.dtype.element_ty, K, V, SHARED, C, BK,
        )  # fmt: skip


_operands_tuned = Tuned(
    _operands,
    [
        triton.Config({"BK": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (64, 8, 1), (32, 4, 1), (128, 8, 1))
    ],
    ["K", "V", "SHARED"],
)


def empty_operands(x: Inputs, layout: ChunkLayout, dtype: torch.dtype) -> ChunkOperands:
    """Allocate the operands of the inter-chunk recurrence but q and k themselves, in the products' dtype."""

    def empty(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=of, device=x.q.device)

    width, value_width = x.widths.values()
    if x.shared:
        scaled = x.q, x.k, empty(*x.beta.shape), empty(*x.beta.shape)
    else:
        scaled = *(empty(*x.beta.shape, width, of=dtype) for _ in range(2)), None, None
    reads, values = empty(*x.beta.shape, width, of=dtype), empty(*x.beta.shape, value_width, of=dtype)
    whole = empty(layout.chunks, x.heads, 1 if x.shared else width)
    return ChunkOperands(*scaled, reads, values, whole)


def chunk_operands(x: Inputs, z: Tensor, layout: ChunkLayout) -> ChunkOperands:
    """Compute the operands of the inter-chunk recurrence, in Z's dtype; `ChunkOperands` gives their shapes.

    z  Z [B·T, H, C], as triton_triangle.py makes it
    """
    operands = empty_operands(x, layout, z.dtype)
    _operands_tuned[(layout.chunks, x.heads)](
        *x, z, *operands, layout.table, layout.cu, *x.head_counts, **x.widths, SHARED=x.shared, C=CHUNK
    )
    return operands
