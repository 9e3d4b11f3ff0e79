"""The inter-chunk recurrence of the mesa layer: the states of all chunks by one pass over each sequence.

Forward in time the states S and R that chunks start from; backward, their gradients dH and dG after every chunk.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_tiles import (
    decay_to_end,
    load_scalars,
    load_state,
    load_symmetric,
    load_tokens,
)  # fmt: skip
from kernels.ops.mesa.work import CHUNK
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.masked_tiles import store_matrix
from kernels.triton_common.tuning import Tuned


@triton.jit
def _states(
    a, b, g, beta, outer, states, final, first, cu, H, A, B,
    BACKWARD: tl.constexpr, SYMMETRIC: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One tile [BA, BB] of one sequence's and head's states. Chunk after chunk, S stored first:

    forward    S ← γ·S + Σ_s w_s·a_s·b_sᵀ, w_s: β_s times the decay from s to the chunk's end
    backward   S ← γ·S + Σ_t c_t·a_t·b_tᵀ, c_t: the decay from the chunk's start to t; from the last chunk

    Backward and symmetric, a·bᵀ counts as its negative symmetric part: the gradient of a solution.

    inputs     a [T, H, A], b [T, H, B]; g, beta [T, H]; outer [N, H, A, B], S at first, or None
    outputs    states [rows of the chunk table, H, A, B]; final [N, H, A, B], S at last, or None
    layout     first: the first chunk of every sequence; cu
    sizes      H heads; A, B sides of a state
    constants  BACKWARD, SYMMETRIC; PRECISION of products; C tokens a chunk; BA, BB sides of the state's tile
    """
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // H, program % H
    i = tl.program_id(1) * BA + tl.arange(0, BA)
    j = tl.program_id(2) * BB + tl.arange(0, BB)
    begin = tl.load(cu + sequence).to(tl.int64)
    end = tl.load(cu + sequence + 1).to(tl.int64)
    chunk = tl.load(first + sequence).to(tl.int64)
    chunks = tl.load(first + sequence + 1).to(tl.int64) - chunk
    state = tl.zeros((BA, BB), tl.float32)
    if outer is not None:
        if SYMMETRIC:
            state += load_symmetric(outer + program * A * B, i, j, A)
        else:
            state += load_state(outer + program * A * B, i, j, A, B)
    for step in range(chunks):
        number = chunks - 1 - step if BACKWARD else step
        store_matrix(states + ((chunk + number) * H + head) * A * B, state, i, j, A, B)
        start, row = begin + number * C, tl.arange(0, C)
        rows = (end - start).to(tl.int32)
        gates = load_scalars(g, start, row, rows, head, H)
        # γ·S, γ = exp(Σ g) over the chunk
        state *= tl.exp(tl.sum(gates, axis=0))
        if BACKWARD:
            # c_t = exp(Σ_{r≤t} g_r)
            weight = tl.exp(tl.cumsum(gates, axis=0))
            if SYMMETRIC:
                weight *= -0.5
        else:
            # w_s = β_s·exp(Σ_{r>s} g_r)
            weight = load_scalars(beta, start, row, rows, head, H)
            weight *= decay_to_end(g, start, row, rows, head, H, C)
        # + Σ_s w_s·a_s·b_sᵀ, or c_t in place of w_s
        left = load_tokens(a, start, row, rows, head, H, i, A) * weight[:, None]
        right = load_tokens(b, start, row, rows, head, H, j, B)
        state += tl.dot(tl.trans(left), right, input_precision=PRECISION)
        if BACKWARD and SYMMETRIC:
            # −½·Σ_t c_t·(a_t·b_tᵀ + b_t·a_tᵀ), the other half
            left = load_tokens(b, start, row, rows, head, H, i, A) * weight[:, None]
            right = load_tokens(a, start, row, rows, head, H, j, B)
            state += tl.dot(tl.trans(left), right, input_precision=PRECISION)
    if final is not None:
        store_matrix(final + program * A * B, state, i, j, A, B)


_states_tuned = Tuned(
    _states,
    [
        triton.Config({"BA": rows, "BB": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in ((64, 64, 8, 1), (64, 64, 8, 2), (32, 64, 4, 2), (32, 32, 4, 3))
    ],
    ["A", "B", "BACKWARD", "SYMMETRIC", "PRECISION"],
)


def chunk_states(
    a: Tensor,
    b: Tensor,
    g: Tensor,
    beta: Tensor | None,
    outer: Tensor | None,
    final: Tensor | None,
    layout: ChunkLayout,
    precision: str,
    *,
    symmetric: bool,
) -> Tensor:
    """Compute the states [rows, H, A, B] before every chunk; without beta, the gradients of those after every chunk.

    a [B, T, H, A], b [B, T, H, B]; g, beta [B, T, H]; outer, final [N, H, A, B], read and written; all contiguous.
    """
    heads, height, width = a.shape[2], a.shape[3], b.shape[3]
    states = torch.empty(layout.chunks, heads, height, width, dtype=torch.float32, device=a.device)
    _states_tuned[
        lambda meta: (
            layout.sequences * heads,
            triton.cdiv(height, meta["BA"]),
            triton.cdiv(width, meta["BB"]),
        )
    ](
        a, b, g, beta, outer, states, final, layout.firsts, layout.cu, heads, height, width,
        BACKWARD=beta is None, SYMMETRIC=symmetric, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return states
