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
from kernels.ops.delta_rule.triton_tiles import CHUNK, head_state
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
    """A sequence's first token and end, its first chunk, and the number of its chunks."""
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
    from_start, to_end, reads, values, whole, beta, p, initial, states, errors, o, final, firsts, cu, scale, H,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, OUTPUTS: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """One chunk after another: the outputs, or the states that chunks start from and the errors of their tokens.

    inputs     from_start Q̄, to_end K̃, reads W, values U, whole exp(G_last) as in `ChunkOperands`; beta [tokens, H];
               p P [tokens, H, C]; initial [N, H, K, V] or None
    outputs    o [tokens, H, V], or states S₀ [chunks, H, K, V] and errors E [tokens, H, V];
               final [N, H, K, V] or None
    layout     firsts, cu
    sizes      scale; H heads
    constants  K, V widths; SHARED: one gate a head; OUTPUTS: o, and neither states nor errors; C tokens a chunk;
               BK ≥ K, BV sides of the state's tile
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    state = outer_state(initial, sequence, head, H, key, value, K, V, BK, BV)
    begin, end, first_chunk, chunks = sequence_chunks(firsts, cu, sequence)
    for step in range(chunks):
        chunk = (first_chunk + step).to(tl.int64)
        before = state.to(reads.dtype.element_ty)
        token = begin + step * C + tl.arange(0, C)
        # E = U − W·S₀
        error = load_head_rows(values, token, end, head, H, value, V).to(tl.float32)
        read = load_head_rows(reads, token, end, head, H, key, K)
        error -= tl.dot(read, before, input_precision="ieee")
        write = (error * load_head_scalars(beta, token, end, head, H)[:, None]).to(reads.dtype.element_ty)
        if OUTPUTS:
            # o = scale·(Q̄·S₀ + P·Diag(β)·E)
            queries = load_head_rows(from_start, token, end, head, H, key, K)
            out = tl.dot(queries, before, input_precision="ieee")
            products = load_head_rows(p, token, end, head, H, tl.arange(0, C), C)
            out += tl.dot(products, write, input_precision="ieee")
            store_head_rows(o, out * scale, token, end, head, H, value, V)
        else:
            store_matrix(head_state(states, chunk, head, H, K, V), before, key, value, K, V)
            store_head_rows(errors, error, token, end, head, H, value, V)
        # S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E
        keys = load_head_rows(to_end, token, end, head, H, key, K)
        state *= load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        state += tl.dot(tl.trans(keys), write, input_precision="ieee")
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
    """Compute S₀ of all chunks and E."""
    found = ChunkStates(empty_states(x, beta.shape[2]), torch.empty_like(x.values))
    _walk(x, None, beta, initial, (*found, None, None), 1.0, layout)
    return found


def _walk(
    x: ChunkOperands, p: Tensor | None, beta: Tensor, initial: Tensor | None, results: tuple[Tensor | None, ...],
    scale: float, layout: ChunkLayout,
) -> None:  # fmt: skip
    heads, widths = beta.shape[2], x.widths
    _inter_chunk_tuned[grid_of_walk(x, heads, layout)](
        *x, beta, p, initial, *results, layout.firsts, layout.cu, scale, heads,
        **widths, SHARED=x.shared, OUTPUTS=p is not None, C=CHUNK, BK=padded(widths["K"]),
    )  # fmt: skip


def empty_states(x: ChunkOperands, heads: int) -> Tensor:
    """Allocate states [chunks, H, K, V] in the operands' dtype."""
    return x.reads.new_empty(x.whole.shape[0], heads, *x.widths.values())


def grid_of_walk(
    x: ChunkOperands, heads: int, layout: ChunkLayout
) -> Callable[[dict[str, int]], tuple[int, ...]]:
    """Return the grid of a walk: sequences, heads, and tiles of value columns."""
    return lambda meta: (layout.sequences, heads, triton.cdiv(x.widths["V"], meta["BV"]))
