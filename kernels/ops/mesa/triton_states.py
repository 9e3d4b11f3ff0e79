"""The inter-chunk recurrence of the mesa layer: the states of all chunks by one pass over each sequence.

Forward in time the states S and R that chunks start from; backward, their gradients dH and dG after every chunk.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import States
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
def _walk(
    a, b, g, beta, outer, states, final, first, cu, tile, H, A, B,
    BACKWARD: tl.constexpr, SYMMETRIC: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One tile [BA, BB] of one sequence's and head's states [A, B]. Chunk after chunk, S stored first:

    forward    S ← γ·S + Σ_s w_s·a_s·b_sᵀ, w_s: β_s times the decay from s to the chunk's end
    backward   S ← γ·S + Σ_t c_t·a_t·b_tᵀ, c_t: the decay from the chunk's start to t; from the last chunk

    Backward and symmetric, a·bᵀ counts as its negative symmetric part: the gradient of a solution.

    inputs     a [T, H, A], b [T, H, B]; g, beta [T, H]; outer [N, H, A, B], S at first, or None
    outputs    states [rows of the chunk table, H, A, B]; final [N, H, A, B], S at last, or None
    layout     first: the first chunk of every sequence; cu
    place      tile, along the columns
    sizes      H heads; A, B sides of a state
    constants  BACKWARD, SYMMETRIC; PRECISION of products; C tokens a chunk; BA, BB sides of the state's tile
    """
    program = tl.program_id(0).to(tl.int64)
    sequence, head = program // H, program % H
    i = tl.program_id(1) * BA + tl.arange(0, BA)
    j = tile * BB + tl.arange(0, BB)
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


@triton.jit
def _states(
    a, b, c, d, g, beta, outer_kk, outer_kv, states_kk, states_kv, final_kk, final_kv, first, cu, H, K, V,
    BACKWARD: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """A tile of the states H [K, K], written with a·bᵀ and symmetric, or G [K, V], with c·dᵀ: both walks at once."""
    tile, tiles = tl.program_id(2), tl.cdiv(K, BB)
    if tile < tiles:
        _walk(
            a, b, g, beta, outer_kk, states_kk, final_kk, first, cu, tile, H, K, K, BACKWARD, True, PRECISION, C, BA, BB
        )  # fmt: skip
    else:
        _walk(
            c, d, g, beta, outer_kv, states_kv, final_kv, first, cu, tile - tiles, H, K, V, BACKWARD, False, PRECISION,
            C, BA, BB,
        )  # fmt: skip


_states_tuned = Tuned(
    _states,
    [
        triton.Config({"BA": rows, "BB": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in ((64, 64, 8, 1), (64, 64, 8, 2), (32, 64, 4, 2), (32, 32, 4, 3))
    ],
    ["K", "V", "BACKWARD", "PRECISION"],
)


def chunk_states(
    kk: tuple[Tensor, Tensor], kv: tuple[Tensor, Tensor], g: Tensor, beta: Tensor | None, outer: States, final: States,
    layout: ChunkLayout, precision: str,
) -> States:  # fmt: skip
    """Compute H and G before every chunk; without beta, the gradients of those after every chunk.

    kk, kv        the vectors [B, T, H, K] and [B, T, H, K or V] whose products are written into H and into G
    g, beta       [B, T, H]
    outer, final  [N, H, K, K] and [N, H, K, V], read and written; all contiguous
    """
    heads, height, width = g.shape[2], kv[0].shape[3], kv[1].shape[3]
    states = States(
        *(
            torch.empty(layout.chunks, heads, height, size, dtype=torch.float32, device=g.device)
            for size in (height, width)
        )
    )

    def grid(meta: dict[str, int]) -> tuple[int, ...]:
        tiles = [triton.cdiv(size, meta["BB"]) for size in (height, width)]
        return layout.sequences * heads, triton.cdiv(height, meta["BA"]), sum(tiles)

    _states_tuned[grid](
        *kk, *kv, g, beta, *outer, *states, *final, layout.firsts, layout.cu, heads, height, width,
        BACKWARD=beta is None, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return states
