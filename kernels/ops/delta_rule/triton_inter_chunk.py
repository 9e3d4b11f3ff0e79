"""The inter-chunk recurrence of the delta rule: states, one of a sequence's chunks after another.

A program holds K × BV of a head's state in fp32; columns of values are independent. With the notation of
triton_operands.py:

    E = U − W·S₀        S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E        o = scale·(Q̄·S₀ + P·Diag(β)·E)

E are the errors that the tokens correct. Forward, outputs are computed on the way, and no state leaves the processor.
Backward, where all chunks at once need them, states and errors are computed again and written.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkOperands, ChunkStates
from kernels.ops.delta_rule.triton_tiles import CHUNK, from_token, head_state
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import padded
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_matrix,
)
from kernels.triton_common.tuning import Tuned


@triton.jit
def load_whole(whole, chunk, head, H, key, K, SHARED: tl.constexpr):
    """exp(G_last), the decay of a whole chunk: [BK], or [1] if channels share it."""
    if SHARED:
        decay = tl.load(whole + chunk * H + head + tl.arange(0, 1))
    else:
        decay = tl.load(whole + (chunk * H + head) * K + key, mask=key < K, other=0.0)
    return decay


@triton.jit
def sequence_chunks(firsts, cu, sequence):
    """A sequence's first token and end (int64), its first chunk, and the number of its chunks: four scalars.

    firsts [N+1]: the first chunk of every sequence, and their number; cu [N+1]: bounds of sequences.
    """
    first_chunk = tl.load(firsts + sequence)
    chunks = tl.load(firsts + sequence + 1) - first_chunk
    return tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64), first_chunk, chunks


@triton.jit
def outer_state(states, sequence, head, H, key, value, K, V, BK: tl.constexpr, BV: tl.constexpr):
    """A sequence's tile of the given states [N, H, K, V], in fp32; zeros where none are given."""
    tile = tl.zeros((BK, BV), tl.float32)
    if states is not None:
        tile += load_matrix(head_state(states, sequence, head, H, K, V), key, value, K, V).to(tl.float32)
    return tile


@triton.jit
def _inter_chunk(
    queries, keys, from_start, to_end, reads, values, whole, beta, p, initial, states, errors, o, final, firsts, cu,
    scale, H, GQ: tl.constexpr, GK: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr,
    OUTPUTS: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One chunk after another: the outputs, or the states that chunks start from and the errors of their tokens.

    inputs     queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`; beta [tokens, H];
               p P [tokens, H, C]; initial [N, H, K, V] or None
    outputs    o [tokens, H, V], or states S₀ [chunks, H, K, V] and errors E [tokens, H, V];
               final [N, H, K, V] or None
    layout     firsts, cu
    sizes      scale; H heads
    constants  GQ, GK heads for one of queries and of keys; K, V widths; SHARED: one gate a head; OUTPUTS: o, and
               neither states nor errors; C tokens a chunk; BK ≥ K, BV sides of the state's tile
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype: tl.constexpr = reads.dtype.element_ty
    token = tl.arange(0, C)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    state = outer_state(initial, sequence, head, H, key, value, K, V, BK, BV)
    begin, end, first_chunk, chunks = sequence_chunks(firsts, cu, sequence)
    for step in range(chunks):
        chunk = (first_chunk + step).to(tl.int64)
        before = state.to(dtype)
        first = begin + step * C
        last = tl.minimum(end - first, C).to(tl.int32)
        # E = U − W·S₀
        error = load_head_rows(from_token(values, first, H, V), token, last, head, H, value, V).to(tl.float32)
        read = load_head_rows(from_token(reads, first, H, K), token, last, head, H, key, K)
        error -= tl.dot(read, before, input_precision="ieee")
        # F = Diag(β)·E
        strength = load_head_scalars(from_token(beta, first, H, 1), token, last, head, H)
        if OUTPUTS:
            # o = scale·(Q̄·S₀ + P·F)
            query = load_head_rows(
                from_token(queries, first, H // GQ, K), token, last, head // GQ, H // GQ, key, K
            )
            out = tl.dot(query.to(dtype), before, input_precision="ieee")
            if SHARED:
                out *= load_head_scalars(from_token(from_start, first, H, 1), token, last, head, H)[:, None]
            products = load_head_rows(from_token(p, first, H, C), token, last, head, H, token, C)
            write = (error * strength[:, None]).to(dtype)
            out += tl.dot(products, write, input_precision="ieee")
            store_head_rows(from_token(o, first, H, V), out * scale, token, last, head, H, value, V)
        else:
            store_matrix(head_state(states, chunk, head, H, K, V), before, key, value, K, V)
            store_head_rows(from_token(errors, first, H, V), error, token, last, head, H, value, V)
        # S = exp(G_last)⊙S₀ + K̃ᵀ·F
        if SHARED:
            strength *= load_head_scalars(from_token(to_end, first, H, 1), token, last, head, H)
        write = (error * strength[:, None]).to(dtype)
        ends = load_head_rows(from_token(keys, first, H // GK, K), token, last, head // GK, H // GK, key, K)
        state *= load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        state += tl.dot(tl.trans(ends.to(dtype)), write, input_precision="ieee")
    if final is not None:
        store_matrix(head_state(final, sequence, head, H, K, V), state, key, value, K, V)


WALK_TILES = [
    triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
    for width, warps, stages in (
        (64, 4, 2),
        (32, 4, 3),
        (64, 8, 2),
        (64, 4, 1),
        (32, 4, 1),
        (16, 4, 1),
        (16, 4, 3),
    )
]
_inter_chunk_tuned = Tuned(_inter_chunk, WALK_TILES, ["K", "V", "SHARED", "OUTPUTS"])


def outputs(
    x: ChunkOperands, p: Tensor, beta: Tensor, initial: Tensor | None, final: Tensor | None, scale: float, o: Tensor,
    layout: ChunkLayout,
) -> None:  # fmt: skip
    """Fill o [B, T, H, V], and `final` [N, H, K, V] if there is one."""
    _walk(x, p, beta, initial, (None, None, o, final), scale, layout)


def inter_chunk(x: ChunkOperands, beta: Tensor, initial: Tensor | None, layout: ChunkLayout) -> ChunkStates:
    """Compute S₀ [chunks, H, K, V] of all chunks and E [B·T, H, V], in the inputs' dtype.

    beta [B, T, H]; initial [N, H, K, V] or None: the states that sequences start from.
    """
    found = ChunkStates(empty_states(x), torch.empty_like(x.values))
    _walk(x, None, beta, initial, (*found, None, None), 1.0, layout)
    return found


def _walk(
    x: ChunkOperands, p: Tensor | None, beta: Tensor, initial: Tensor | None, results: tuple[Tensor | None, ...],
    scale: float, layout: ChunkLayout,
) -> None:  # fmt: skip
    _inter_chunk_tuned[grid_of_walk(x, layout)](
        *x, beta, p, initial, *results, layout.firsts, layout.cu, scale, x.reads.shape[2], **x.groups,
        **x.widths, SHARED=x.shared, OUTPUTS=p is not None, C=CHUNK, BK=padded(x.widths["K"]),
    )  # fmt: skip


def empty_states(x: ChunkOperands) -> Tensor:
    """Allocate states [chunks, H, K, V] in the operands' dtype."""
    return x.reads.new_empty(*x.whole.shape[:2], *x.widths.values())


def grid_of_walk(x: ChunkOperands, layout: ChunkLayout) -> Callable[[dict[str, int]], tuple[int, ...]]:
    """Return the grid of a walk: sequences, heads, and tiles of value columns."""
    return lambda meta: (layout.sequences, x.reads.shape[2], triton.cdiv(x.widths["V"], meta["BV"]))
