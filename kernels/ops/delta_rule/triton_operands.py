"""The operands of the inter-chunk recurrence, of all chunks at once.

With the notation of triton_intra_chunk.py and triton_triangle.py, G_i the sum of a chunk's gates up to token i, S₀ the
state that the chunk starts from, K̄ = exp(G)⊙K, Q̄ = exp(G)⊙Q, and K̃ = exp(G_last − G)⊙K:

    W = K̄ − Z·Diag(β)·K̄        U = V − Z·Diag(β)·V
    E = U − W·S₀                S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E      one chunk after another: triton_inter_chunk.py
    o = scale·(Q̄·S₀ + P·Diag(β)·E)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkOperands, Inputs
from kernels.ops.delta_rule.triton_tiles import CHUNK, decay_from_start, decay_to_end, load_gates
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    store_head_rows,
)
from kernels.triton_common.tuning import Tuned


@triton.jit
def _operands(
    q, k, v, g, beta, z, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g, beta as in `Inputs`; z Z [tokens, H, C]
    outputs    from_start Q̄, to_end K̃, reads W [tokens, H, K]; values U [tokens, H, V]; whole exp(G_last)
    layout     table, cu
    sizes      H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; C tokens a chunk; BK columns a tile
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        is_last = (tl.arange(0, C) == C - 1)[:, None]  # or beyond the sequence's end, where gates are 0
        # Z·Diag(β)
        weighted = load_head_rows(z, token, last, head, H, tl.arange(0, C), C).to(tl.float32)
        weighted = (weighted * load_head_scalars(beta, token, last, head, H)[None]).to(z.dtype.element_ty)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            gates = load_gates(g, token, last, head, H, column, K, SHARED)
            decay = decay_from_start(gates, g.dtype.element_ty, C)
            # Q̄ = exp(G)⊙Q
            queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
            store_head_rows(from_start, queries * decay, token, last, head, H, column, K)
            # K̃ = exp(G_last − G)⊙K
            keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
            ends = keys * decay_to_end(gates, g.dtype.element_ty, C)
            store_head_rows(to_end, ends, token, last, head, H, column, K)
            # W = K̄ − Z·Diag(β)·K̄,  K̄ = exp(G)⊙K
            keys *= decay
            keys -= tl.dot(weighted, keys.to(z.dtype.element_ty), input_precision="ieee")
            store_head_rows(reads, keys, token, last, head, H, column, K)
            # exp(G_last)
            if not SHARED:
                place = tl.broadcast_to((whole + (chunk * H + head) * K + column)[None], (C, BK))
                tl.store(place, decay, mask=is_last & (column < K)[None])
            elif start == 0:
                tl.store(whole + chunk * H + head + tl.arange(0, 1), tl.exp(tl.sum(gates, axis=0)))
        for start in range(0, V, BK):
            column = start + tl.arange(0, BK)
            # U = V − Z·Diag(β)·V
            rows = load_head_rows(v, token, last, head // (H // HV), HV, column, V).to(tl.float32)
            rows -= tl.dot(weighted, rows.to(z.dtype.element_ty), input_precision="ieee")
            store_head_rows(values, rows, token, last, head, H, column, V)


_operands_tuned = Tuned(
    _operands,
    [
        triton.Config({"BK": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (64, 8, 1), (32, 4, 1), (128, 8, 1))
    ],
    ["K", "V", "SHARED"],
)


def chunk_operands(x: Inputs, z: Tensor, layout: ChunkLayout) -> ChunkOperands:
    """Compute the operands of the inter-chunk recurrence, in Z's dtype."""
    widths, options = x.widths, {"dtype": z.dtype, "device": z.device}
    from_start, to_end, reads = (torch.empty(*x.beta.shape, widths["K"], **options) for _ in range(3))
    values = torch.empty(*x.beta.shape, widths["V"], **options)
    shape = layout.chunks, x.heads, 1 if x.shared else widths["K"]
    whole = torch.empty(shape, dtype=torch.float32, device=z.device)
    _operands_tuned[(layout.chunks, x.heads)](
        *x, z, from_start, to_end, reads, values, whole, layout.table, layout.cu, *x.head_counts,
        **widths, SHARED=x.shared, C=CHUNK,
    )  # fmt: skip
    return ChunkOperands(from_start, to_end, reads, values, whole)
