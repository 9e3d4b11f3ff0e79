"""The recurrence of the mesa layer's states over chunks, S ← γ·S + what a chunk adds, one element by itself."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import States
from kernels.packing.chunk_layout import ChunkLayout

STRIP = 512
"""Elements of a state that a program takes through the chunks."""


@triton.jit
def _added(states, decays, step, begin, chunks, head, H, element, size, BACKWARD: tl.constexpr):
    """γ of the chunk of a step, and what it adds to elements of a state; 0 after the last step."""
    place = (begin + (chunks - 1 - step if BACKWARD else step)) * H + head
    there = step < chunks
    decay = tl.load(decays + place, mask=there, other=0.0)
    # One comparison: Triton 3.9's interpreter takes no mask in which a scalar one is spread over a block.
    return decay, tl.load(states + place * size + element, mask=element < tl.where(there, size, 0), other=0.0)


@triton.jit
def _scan_states(
    states, decays, outer, final, program, begin, chunks, strip, H, A, B,
    BACKWARD: tl.constexpr, SYMMETRIC: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """S ← γ·S + what the chunk adds, for E elements of one sequence's and head's state [A, B]; S stored in its place.

    SYMMETRIC: of S at first the symmetric part (S + Sᵀ)/2.
    """
    head, element, size = program % H, strip * E + tl.arange(0, E), A * B
    inside = element < size
    state = tl.zeros((E,), tl.float32)
    if outer is not None:
        outer += program * size
        state += tl.load(outer + element, mask=inside, other=0.0).to(tl.float32)
        if SYMMETRIC:
            mirrored = element % B * B + element // B
            state = 0.5 * (state + tl.load(outer + mirrored, mask=inside, other=0.0).to(tl.float32))
    # Two steps ahead: a step by itself is as long as memory takes to answer.
    decay, added = _added(states, decays, 0, begin, chunks, head, H, element, size, BACKWARD)
    decay_1, added_1 = _added(states, decays, 1, begin, chunks, head, H, element, size, BACKWARD)
    for step in range(chunks):
        decay_2, added_2 = _added(states, decays, step + 2, begin, chunks, head, H, element, size, BACKWARD)
        place = (begin + (chunks - 1 - step if BACKWARD else step)) * H + head
        tl.store(states + place * size + element, state, mask=inside)
        state = decay * state + added
        decay, added, decay_1, added_1 = decay_1, added_1, decay_2, added_2
    if final is not None:
        tl.store(final + program * size + element, state.to(final.dtype.element_ty), mask=inside)


@triton.jit
def _scan(
    states_kk, states_kv, decays, outer_kk, outer_kv, final_kk, final_kv, firsts, H, K, V,
    BACKWARD: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The states before every chunk in place of what chunks add, chunk after chunk; BACKWARD: from the last one.

    inputs     states_kk [rows of the table, H, K, K], states_kv [.., K, V] and decays [.., H] from `_writes`;
               outer_kk [N, H, K, K], outer_kv [N, H, K, V], the states at first, or None
    outputs    states_kk, states_kv; final_kk, final_kv [N, H, .., ..], the states at last, or None
    layout     firsts: the first chunk of every sequence
    sizes      H heads; K, V widths
    constants  BACKWARD; E elements of a state
    """
    program, strip = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = tl.load(firsts + program // H).to(tl.int64)
    chunks = tl.load(firsts + program // H + 1).to(tl.int64) - begin
    strips = tl.cdiv(K * K, E)
    if strip < strips:
        _scan_states(
            states_kk, decays, outer_kk, final_kk, program, begin, chunks, strip, H, K, K, BACKWARD, True, E
        )
    else:
        _scan_states(
            states_kv, decays, outer_kv, final_kv, program, begin, chunks, strip - strips, H, K, V, BACKWARD, False, E
        )  # fmt: skip


def scan(
    states: States, decays: Tensor, outer: States, final: States, layout: ChunkLayout, *, backward: bool
) -> None:
    """Put the states before every chunk in the place of what it adds; `backward` in time, those after it.

    states        H [rows, H, K, K] and G [rows, H, K, V], fp32, contiguous
    decays        [rows, H], γ of every chunk
    outer, final  [N, H, K, K] and [N, H, K, V], read and written; contiguous
    """
    heads, height, width = states.h_kv.shape[1:]
    strips = sum(triton.cdiv(height * size, STRIP) for size in (height, width))
    # Not tuned: a second run would begin with the sums of the first.
    _scan[(layout.sequences * heads, strips)](
        *states, decays, *outer, *final, layout.firsts, heads, height, width, BACKWARD=backward, E=STRIP
    )
