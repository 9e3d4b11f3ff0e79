"""What the walk from state to state reads, and the outputs that follow from it: all chunks at once.

With the notation of triton_intra_chunk.py, G_i the sum of a chunk's gates up to token i, S₀ the state that the chunk starts
from, K̄ = exp(G)⊙K, Q̄ = exp(G)⊙Q, and K̃ the keys decayed to the chunk's end:

    W = K̄ − Z·Diag(β)·K̄        U = V − Z·Diag(β)·V
    E = U − W·S₀                S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E      one chunk after another: triton_inter_chunk.py
    o = scale·(Q̄·S₀ + P·Diag(β)·E)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_inter_chunk import Chunked
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
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


@triton.jit
def _prepare(
    q, k, v, g, beta, z, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Everything in `Chunked`."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        weighted = load_rows(z, token, last, head, H, tl.arange(0, C), C).to(tl.float32)
        weighted = (weighted * load_column(beta, token, last, head, H)[None]).to(z.dtype.element_ty)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            gates = load_gates(g, token, last, head, H, column, K, SHARED)
            after = load_gates(g, token + 1, last, head, H, column, K, SHARED)
            decay = decay_from_start(gates)
            queries = load_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
            store_rows(from_start, queries * decay, token, last, head, H, column, K)
            keys = load_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
            store_rows(to_end, keys * decay_to_end(after), token, last, head, H, column, K)
            keys *= decay
            keys -= tl.dot(weighted, keys.to(z.dtype.element_ty), input_precision="ieee")
            store_rows(reads, keys, token, last, head, H, column, K)
            if not SHARED:
                place = whole + (chunk * H + head) * K + column
                tl.store(place, tl.exp(tl.sum(gates, axis=0)), mask=column < K)
            elif start == 0:
                tl.store(whole + chunk * H + head + tl.arange(0, 1), tl.exp(tl.sum(gates, axis=0)))
        for start in range(0, V, BK):
            column = start + tl.arange(0, BK)
            rows = load_rows(v, token, last, head // (H // HV), HV, column, V).to(tl.float32)
            rows -= tl.dot(weighted, rows.to(z.dtype.element_ty), input_precision="ieee")
            store_rows(values, rows, token, last, head, H, column, V)


@triton.jit
def _outputs(
    from_start, p, states, errors, beta, o, table, cu, scale, H,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [tokens, H, V]."""
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = first + tl.arange(0, C)
        last = tl.minimum(end, first + C)
        value = tl.program_id(2) * BV + tl.arange(0, BV)
        write = load_rows(errors, token, last, head, H, value, V).to(tl.float32)
        write *= load_column(beta, token, last, head, H)[:, None]
        products = load_rows(p, token, last, head, H, tl.arange(0, C), C)
        out = tl.dot(products, write.to(p.dtype.element_ty), input_precision="ieee")
        for start in range(0, K, BK):
            key = start + tl.arange(0, BK)
            place, inside = state_tile(chunk, head, H, key, value, K, V)
            state = tl.load(states + place, mask=inside, other=0.0)
            queries = load_rows(from_start, token, last, head, H, key, K)
            out += tl.dot(queries, state, input_precision="ieee")
        store_rows(o, out * scale, token, last, head, H, value, V)


_prepare_tuned = Tuned(
    _prepare,
    [
        triton.Config({"BK": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (64, 8, 1), (32, 4, 2), (128, 8, 1))
    ],
    ["K", "V", "SHARED"],
)
_outputs_tuned = Tuned(
    _outputs,
    [
        triton.Config({"BK": width, "BV": value_width}, num_warps=warps, num_stages=stages)
        for width, value_width, warps, stages in (
            (64, 64, 4, 3),
            (64, 128, 4, 2),
            (128, 64, 4, 2),
            (32, 64, 4, 3),
            (32, 32, 2, 1),
        )
    ],
    ["K", "V"],
)


def prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, z: Tensor, table: Tensor, cu: Tensor
) -> Chunked:
    """What the scans read."""
    heads, width, value_width = beta.shape[2], q.shape[3], v.shape[3]
    options = {"dtype": z.dtype, "device": q.device}
    from_start, to_end, reads = (torch.empty(*beta.shape, width, **options) for _ in range(3))
    values = torch.empty(*beta.shape, value_width, **options)
    whole = torch.empty(len(table), heads, 1 if g.dim() == 3 else width, dtype=torch.float32, device=q.device)
    _prepare_tuned[(len(table), heads)](
        q, k, v, g, beta, z, from_start, to_end, reads, values, whole, table, cu,
        heads, q.shape[2], k.shape[2], v.shape[2], K=width, V=value_width, SHARED=g.dim() == 3, C=CHUNK,
    )  # fmt: skip
    return Chunked(from_start, to_end, reads, values, whole)


def outputs(
    x: Chunked, p: Tensor, states: Tensor, errors: Tensor, beta: Tensor, scale: float, o: Tensor,
    table: Tensor, cu: Tensor,
) -> None:  # fmt: skip
    """Fill o [B, T, H, V]."""
    heads, width, value_width = beta.shape[2], x.reads.shape[-1], x.values.shape[-1]
    _outputs_tuned[lambda meta: (len(table), heads, triton.cdiv(value_width, meta["BV"]))](
        x.from_start, p, states, errors, beta, o, table, cu, scale, heads, K=width, V=value_width, C=CHUNK
    )
