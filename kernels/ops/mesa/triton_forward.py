"""Kernels of the mesa layer's forward pass: the states that chunks start from, the systems' solutions, the outputs.

The backward pass uses them again, with other tensors in their places. triton_ops.py has the notation and the order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa import CHUNK
from kernels.triton_common import ChunkLayout, chunk_bounds, padded
from kernels.triton_common.tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_head_scalars,
    store_matrix,
)
from kernels.triton_common.tuning import Tuned

# Tuples of the tensors that the steps pass on.


class Tokens(NamedTuple):
    """The tensors that states are written with, contiguous: k [B, T, H, K], v [B, T, H, V]; g, beta [B, T, H]."""

    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class States(NamedTuple):
    """H and G, or their gradients: [rows, H, K, K] and [rows, H, K, V], rows being chunks or sequences."""

    h_kk: Tensor | None
    h_kv: Tensor | None


class Precisions(NamedTuple):
    """The precision of matrix products.

    systems  in the states before chunks and in the solver, as `product` takes it
    others   everywhere else, as `tl.dot` takes it
    """

    systems: str
    others: str


# Device functions: products of fp32 tiles as fp16 parts.
#
# An fp16 number has 11 bits where a bf16 one has 8, so that two parts hold 22, nearly all of fp32, and one is eight
# times as exact. But its range is 2⁻²⁴ to 2¹⁶: what is taken apart is first divided by a number near its largest.


@triton.jit
def power_below(x):
    """The power of two, fp32, at or below the largest |x_i| of a vector x [n] in fp32; 1 where all of it is 0."""
    most = tl.max(tl.abs(x), axis=0)
    exponent = most.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(most > 0, exponent.to(tl.float32, bitcast=True), 1.0)


@triton.jit
def split_fp16(x):
    """x [...] in fp32 as two fp16 tiles [...], high and low, whose sum is x to 22 bits."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product_split_left(x, y, total, PARTS: tl.constexpr):
    """total + x·y [M, N] in fp32: x [M, K] in fp32 is split into PARTS (1 or 2) fp16 tiles, y [K, N] is fp16."""
    if PARTS == 1:
        total = tl.dot(x.to(tl.float16), y, total)
    else:
        high, low = split_fp16(x)
        total = tl.dot(high, y, tl.dot(low, y, total))
    return total


@triton.jit
def product_split_both(x, high, low, total, PARTS: tl.constexpr):
    """total + x·(high + low) [M, N] in fp32, without the product of low parts.

    x [M, K] in fp32 is split into PARTS (1 or 2) fp16 tiles; high, low [K, N] in fp16.
    """
    if PARTS == 1:
        part = x.to(tl.float16)
        total = tl.dot(part, high, tl.dot(part, low, total))
    else:
        x_high, x_low = split_fp16(x)
        total = tl.dot(x_high, high, tl.dot(x_high, low, tl.dot(x_low, high, total)))
    return total


@triton.jit
def reciprocal(x):
    """1/x of x [...] > 0, elementwise in fp32.

    Two instructions, where a division takes ten for numbers near the ends of the range.
    """
    root = tl.rsqrt(x)
    return root * root


# Device functions: tiles of a chunk's tokens and of states, and decays between tokens.
#
# A chunk's tokens begin at `first` on the packed axis, `row` are numbers within the chunk, and rows from `rows` on,
# not the chunk's own, read as zero. Only the address of the first token needs 64 bits: those of a whole tile would
# fill the registers.
#
# Sums of gates are sums, never differences of longer sums: a small gate after a large one would be lost.


@triton.jit
def _parts(x):
    """The two bf16 numbers whose sum is a number to 16 bits: the upper half of its fp32 form, and the rest rounded.

    A rounded upper half would be converted twice, number by number: half as many instructions again.
    """
    x = x.to(tl.float32)
    high = (x.to(tl.int32, bitcast=True) & -(2**16)).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def product(x, y, total, PRECISION: tl.constexpr):
    """total + x·y [M, N] in fp32, of x [M, K] in fp32 and y [K, N] as stored.

    PRECISION as `tl.dot` has it, or "parts": of two bf16 parts of each. A bf16 number is one part already, so that two
    products do; of two fp32 ones it takes three, without that of low parts.
    """
    if PRECISION != "parts":
        total = tl.dot(x, y.to(tl.float32), total, input_precision=PRECISION)
    elif y.dtype == tl.bfloat16:
        high, low = _parts(x)
        total = tl.dot(high, y, tl.dot(low, y, total))
    else:
        x_high, x_low = _parts(x)
        y_high, y_low = _parts(y)
        total = tl.dot(x_high, y_high, tl.dot(x_high, y_low, tl.dot(x_low, y_high, total)))
    return total


@triton.jit
def load_tokens(x, first, row, rows, head, H, column, WIDTH):
    """x [T, H, WIDTH] of a chunk and head, a tile [row, column] in fp32."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH).to(tl.float32)


@triton.jit
def load_stored(x, first, row, rows, head, H, column, WIDTH):
    """x [T, H, WIDTH] of a chunk and head, a tile [row, column] in x's type."""
    return load_head_rows(x + first * H * WIDTH, row, rows, head, H, column, WIDTH)


@triton.jit
def store_tokens(x, tile, first, row, rows, head, H, column, WIDTH):
    """Write a tile [row, column] to x [T, H, WIDTH], where `load_tokens` would load it, rounded to x's type."""
    store_head_rows(x + first * H * WIDTH, tile, row, rows, head, H, column, WIDTH)


@triton.jit
def load_scalars(x, first, row, rows, head, H):
    """x [T, H] of a chunk and head, [row] in fp32."""
    return load_head_scalars(x + first * H, row, rows, head, H)


@triton.jit
def store_scalars(x, values, first, row, rows, head, H):
    """Write values [row] to x [T, H], where `load_scalars` would load them, rounded to x's type."""
    store_head_scalars(x + first * H, values, row, rows, head, H)


@triton.jit
def load_state(state, row, column, ROWS, COLUMNS):
    """A tile [row, column] of one state [ROWS, COLUMNS] in fp32; 0 outside."""
    return load_matrix(state, row, column, ROWS, COLUMNS).to(tl.float32)


@triton.jit
def load_symmetric(state, row, column, WIDTH):
    """A tile [row, column] of the symmetric part (S + Sᵀ)/2 of one state [WIDTH, WIDTH] in fp32; 0 outside."""
    mask = (row < WIDTH)[:, None] & (column < WIDTH)[None]
    own = tl.load(state + row[:, None] * WIDTH + column[None], mask=mask, other=0.0)
    mirrored = tl.load(state + column[None] * WIDTH + row[:, None], mask=mask, other=0.0)
    return 0.5 * (own.to(tl.float32) + mirrored.to(tl.float32))


@triton.jit
def decay_to_end(g, first, row, rows, head, H, C: tl.constexpr):
    """exp(Σ_{r>s} g_r) [C]: the decay from each token s to the chunk's last."""
    later = (row + 1 < rows) & (row + 1 < C)
    gates = tl.load(g + first * H + head + (row + 1) * H, mask=later, other=0.0).to(tl.float32)
    return tl.exp(tl.cumsum(gates, axis=0, reverse=True))


@triton.jit
def decay_of_pairs(gates, row, source):
    """exp(Σ_{s<r≤t} g_r) [t, s]: the decay from s to t; 0 for s > t.

    gates of the tokens `row`, which are the t; `source` are the s.
    """
    # exp as a power of two: a scaled gate here or a scaled sum there
    sums = tl.cumsum(
        tl.where(row[:, None] > source[None], (gates * 1.4426950408889634)[:, None], 0.0), axis=0
    )
    return tl.where(row[:, None] >= source[None], tl.exp2(sums), 0.0)


# The recurrence of states over chunks, S ← γ·S + what a chunk adds, one element by itself.

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


# The states that chunks start from, S and R, and backward in time their gradients dH and dG.
#
# What a chunk adds is a product of its own tokens: those of all chunks are computed at once (`_writes`). What remains
# one chunk after another is the sum (`scan`).


@triton.jit
def _weighted(x, weight, first, row, rows, head, H, column, WIDTH):
    """(w_s·x_s)ᵀ [column, C] of a chunk's tokens s."""
    return tl.trans(load_stored(x, first, row, rows, head, H, column, WIDTH).to(tl.float32) * weight[:, None])


@triton.jit
def _written(
    a, b, weight, state, first, row, rows, head, across, down, H, A, B,
    MIRRORED: tl.constexpr, PRECISION: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """Store a tile [BA, BB] of Σ_s w_s·a_s·b_sᵀ in a state; MIRRORED: of Σ_s w_s·(a_s·b_sᵀ + b_s·a_sᵀ).

    inputs     a [T, H, A], b [T, H, B]; weight w [C]
    outputs    state [A, B]
    place      first token, row [C], rows of the chunk; head; down, across: the tile's number along A and B
    sizes      H heads; A, B widths
    constants  MIRRORED; PRECISION of products; BA, BB sides of the tile
    """
    i, j = down * BA + tl.arange(0, BA), across * BB + tl.arange(0, BB)
    total = tl.zeros((BA, BB), tl.float32)
    left = _weighted(a, weight, first, row, rows, head, H, i, A)
    total = product(left, load_stored(b, first, row, rows, head, H, j, B), total, PRECISION)
    if MIRRORED:
        left = _weighted(b, weight, first, row, rows, head, H, i, A)
        total = product(left, load_stored(a, first, row, rows, head, H, j, B), total, PRECISION)
    store_matrix(state, total, i, j, A, B)


@triton.jit
def _writes(
    a, b, v, g, beta, states_kk, states_kv, decays, table, cu, H, K, V,
    BACKWARD: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """The sums that a chunk and head adds to H [K, K] and G [K, V], a tile of one of them, and its decay γ = exp Σ g:

    forward    Σ_s w_s·a_s·b_sᵀ and Σ_s w_s·b_s·v_sᵀ, w_s: β_s times the decay from s to the chunk's end
    backward   −½·Σ_t c_t·(a_t·b_tᵀ + b_t·a_tᵀ), the gradient of a solution, and Σ_t c_t·b_t·v_tᵀ, c_t: the decay
               from the chunk's start to t

    inputs     a, b [T, H, K]; v [T, H, V]; g, beta [T, H]
    outputs    states_kk [rows of the table, H, K, K], states_kv [rows of the table, H, K, V], decays [rows of it, H]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  BACKWARD; PRECISION of products; C tokens a chunk; BA, BB sides of the state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    down, across = tl.program_id(2) % tl.cdiv(K, BA), tl.program_id(2) // tl.cdiv(K, BA)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, rows = tl.arange(0, C), (end - first).to(tl.int32)
        gates = load_scalars(g, first, row, rows, head, H)
        place = chunk * H + head
        if tl.program_id(2) == 0:
            tl.store(decays + place, tl.exp(tl.sum(gates, axis=0)))
        if BACKWARD:
            # c_t = exp(Σ_{r≤t} g_r)
            weight = tl.exp(tl.cumsum(gates, axis=0))
        else:
            # w_s = β_s·exp(Σ_{r>s} g_r)
            weight = load_scalars(beta, first, row, rows, head, H)
            weight *= decay_to_end(g, first, row, rows, head, H, C)
        tiles = tl.cdiv(K, BB)
        if across < tiles:
            half = -0.5 * weight if BACKWARD else weight
            _written(
                a, b, half, states_kk + place * K * K, first, row, rows, head, across, down, H, K, K,
                BACKWARD, PRECISION, BA, BB,
            )  # fmt: skip
        else:
            _written(
                b, v, weight, states_kv + place * K * V, first, row, rows, head, across - tiles, down, H, K, V,
                False, PRECISION, BA, BB,
            )  # fmt: skip


_writes_tuned = Tuned(
    _writes,
    [
        triton.Config({"BA": rows, "BB": columns}, num_warps=warps, num_stages=1)
        for rows, columns, warps in ((64, 64, 4), (64, 64, 8), (32, 64, 4), (32, 32, 4))
    ],
    ["K", "V", "BACKWARD", "PRECISION"],
)


def chunk_states(
    a: Tensor, b: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, outer: States, final: States,
    layout: ChunkLayout, precision: str,
) -> States:  # fmt: skip
    """Compute H and G before every chunk; without beta, the gradients of those after every chunk.

    a, b, v       [B, T, H, K], [B, T, H, K] and [B, T, H, V]: a·bᵀ is written into H, b·vᵀ into G
    g, beta       [B, T, H]
    outer, final  [N, H, K, K] and [N, H, K, V], read and written; all contiguous
    """
    heads, height, width = g.shape[2], b.shape[3], v.shape[3]
    fresh = {"dtype": torch.float32, "device": g.device}
    states = States(*(torch.empty(layout.chunks, heads, height, size, **fresh) for size in (height, width)))
    decays = torch.empty(layout.chunks, heads, **fresh)

    def grid(meta: dict[str, int]) -> tuple[int, ...]:
        tiles = sum(triton.cdiv(size, meta["BB"]) for size in (height, width))
        return layout.chunks, heads, triton.cdiv(height, meta["BA"]) * tiles

    _writes_tuned[grid](
        a, b, v, g, beta, *states, decays, layout.table, layout.cu, heads, height, width,
        BACKWARD=beta is None, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    scan(states, decays, outer, final, layout, backward=beta is None)
    return states


# The linear systems (H_t + Λ)·x_t = b_t of a chunk's tokens, solved together by one program, without their matrices.
#
# Conjugate gradients of H_t + Λ = A, preconditioned by Λ: from x = 0, r = b, z = Λ⁻¹·r, p = z,
#
#     α = rᵀz / pᵀA·p,   x ← x + α·p,   r ← r − α·A·p,   z ← Λ⁻¹·r,   p ← z + (rᵀz / rᵀz before)·p
#
# Half-precision inputs: A·p is taken from fp16 parts (`split_fp16`). S is two and the keys are one, exactly. In
# the first EXACT steps p and what multiplies keys are two as well, with errors of fp32; later steps correct what is
# left, in four products in place of seven: along a p that is one part itself, which x moves by as well. (A p that is
# rounded for the products alone ends 30 times as far from the solution: 3e-3 for sixteen keys, 2,048 times, at Λ =
# 0.25; fp32 1e-5.) p is held times `shrink`, so that it stays in fp16's range while residuals fall.
#
# A chunk's start state S of up to 128 × 128 stays in shared memory for all steps. A wider one does not fit: every
# step reads it again, from the L2 cache, in tiles of rows, and since the vectors are longer too, a program solves for
# half a chunk or less. A tile of rows is multiplied by the same columns of p; a tile in registers cannot be sliced,
# so p goes through memory, the place of the solution.

RESIDENT = 128
"""Key widths up to which a program holds a whole state."""

EXACT = tl.constexpr(8)
"""Steps with two parts of everything; fewer are thus taken as the definition takes them."""

REACH = tl.constexpr(2.0**8)
"""The most that a number of the scaled p can be; what is multiplied by keys stays below 2¹³."""

TINY = tl.constexpr(1e-36)


@triton.jit
def _in_tiles(
    p, x, k, state, first, row, source, rows, head, H, column, K,
    PRECISION: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """p·kᵀ [R, C] and p·S [R, BK], S in tiles of BS rows; overwrites x by p.

    inputs     p [R, BK]; k [T, H, K]; state S [K, K]
    outputs    pairs [R, C], carried [R, BK], returned, in fp32; x [T, H, K], room for p
    place      first token, row [R] and source [C] of the chunk, rows; head; column [BK]
    sizes      H heads; K key width
    constants  PRECISION of products; R tokens a program; C tokens a chunk; BK ≥ K; BS rows of a tile
    """
    store_tokens(x, p, first, row, rows, head, H, column, K)
    tl.debug_barrier()  # p is there as a whole
    pairs = tl.zeros((R, C), tl.float32)
    carried = tl.zeros((R, BK), tl.float32)
    for start in range(0, K, BS):
        i = start + tl.arange(0, BS)
        part = load_tokens(x, first, row, rows, head, H, i, K).to(p.dtype)
        keys = load_stored(k, first, source, rows, head, H, i, K)
        pairs = product(part, tl.trans(keys), pairs, PRECISION)
        carried = product(part, load_state(state, i, column, K, K), carried, PRECISION)
    tl.debug_barrier()  # every thread has read it, the next p may come
    return pairs, carried


@triton.jit
def _shrink(energy, ridge):
    """The factor for p by which none of it exceeds REACH: p_i² ≤ pᵀΛ·p / Λ_i; energy = pᵀΛ·p, Λ_i ≥ ridge."""
    size = energy * (1 / (REACH * REACH * ridge))
    return tl.rsqrt(tl.maximum(size, TINY, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _unsolved(rz, enough):
    """Which tokens go on: those of rᵀz > enough, and those of NaN, which the solution has to show."""
    return (rz <= enough) == 0


@triton.jit
def _iterate(
    p, r, solution, rz, energy, shrink, steps, enough, inverse, ridge, lowest, carry, weights, keys, high, low,
    x, k, state, first, row, source, rows, head, H, column, K,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """At most `steps` conjugate gradients for R tokens, from where earlier ones ended; all in fp32.

    A = Λ + c_t·S + Σ_s W_ts·k_s·k_sᵀ. A token goes on while rᵀz > enough, and all while one does.

    iterates   p [R, BK], times shrink; r, solution x [R, BK]; rz = rᵀz, energy = pᵀΛ·p, shrink [R]. They are returned
               as they are after the last step, in this order
    stop rule  steps; enough [R]
    system     ridge Λ [BK], lowest of it [], inverse Λ⁻¹ [BK]; carry c [R, 1]; weights W [R, C]; keys [C, BK];
               S [BK, BK] = high + low, both and keys in fp16 where PARTS, else S = high
    in memory  for BS < BK, where S stands in no register: x [T, H, K], room for p; k [T, H, K]; state S [K, K]
    place      first token, row [R] and source [C] of the chunk, rows; head; column [BK]
    sizes      H heads; K key width
    constants  PRECISION of products, for PARTS = 0; PARTS of fp16 (1 or 2) of p and of what multiplies keys, 0: none;
               R tokens a program; C tokens a chunk; BK ≥ K; BS rows of S at a time
    """
    step = 0
    while (step < steps) & (tl.max(_unsolved(rz, enough).to(tl.int32), axis=0) > 0):
        live = _unsolved(rz, enough)
        if PARTS == 1:  # along what is multiplied, so that r stays b − A·x
            p = p.to(tl.float16).to(tl.float32)
        # A·p = Λ·p + c_t·S·p + Σ_{s≤t} W_ts·k_s·(k_sᵀ·p)
        if PARTS:
            pairs = product_split_left(p, tl.trans(keys), tl.zeros((R, C), tl.float32), PARTS)
            carried = product_split_both(p, high, low, tl.zeros((R, BK), tl.float32), PARTS)
        elif BS == BK:
            pairs = product(p, tl.trans(keys), tl.zeros((R, C), tl.float32), PRECISION)
            carried = product(p, high, tl.zeros((R, BK), tl.float32), PRECISION)
        else:
            pairs, carried = _in_tiles(
                p, x, k, state, first, row, source, rows, head, H, column, K, PRECISION, R, C, BK, BS
            )
        ap = p * ridge[None] + carry * carried
        if PARTS:
            ap = product_split_left(weights * pairs, keys, ap, PARTS)
        else:
            ap = product(weights * pairs, keys, ap, PRECISION)
        # α = rᵀz / pᵀA·p, and times shrink once, for p is held times shrink
        alpha = tl.where(live, rz * shrink * reciprocal(tl.where(live, tl.sum(p * ap, axis=1), 1.0)), 0.0)
        # x ← x + α·p,  r ← r − α·A·p,  z ← Λ⁻¹·r
        solution += alpha[:, None] * p
        r -= alpha[:, None] * ap
        z = r * inverse[None]
        # p ← z + (rᵀz / rᵀz before)·p, where zᵀΛ·p = rᵀp = 0
        old = reciprocal(tl.where(live, rz, 1.0))
        rz = tl.sum(r * z, axis=1)
        turn = tl.where(live, rz * old, 0.0)
        energy = rz + turn * turn * energy
        turn *= reciprocal(shrink)
        shrink = _shrink(energy, lowest)
        p = z * shrink[:, None] + (turn * shrink)[:, None] * p
        step += 1
    return p, r, solution, rz, energy, shrink


@triton.jit
def _decays(g, first, row, source, rows, head, H, R: tl.constexpr, C: tl.constexpr):
    """From a chunk's start and from its tokens s to R tokens t: exp(Σ_{r≤t} g_r) [R, 1], exp(Σ_{s<r≤t} g_r) [R, C]."""
    gates = load_scalars(g, first, row, rows, head, H)
    carry = tl.exp(tl.cumsum(gates, axis=0))[:, None]
    pairs = decay_of_pairs(gates, row, source)
    if R < C:  # up to the first of the R tokens
        earlier = tl.minimum(rows, tl.min(row, axis=0))
        carry *= tl.exp(tl.sum(load_scalars(g, first, source, earlier, head, H), axis=0))
        pairs *= decay_to_end(g, first, source, earlier, head, H, C)[None]
    return carry, pairs


@triton.jit
def _solve(
    b, x, k, g, beta, lamb, state, table, cu, steps, H, K,
    PRECISION: tl.constexpr, HALVES: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """x_t = (Λ + c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ)⁻¹·b_t for R tokens t of a chunk and head.

    BS = BK: S [BK, BK] is held; less: it is read again in every step, BS rows at a time.

    inputs     b [T, H, K]; k [T, H, K]; g, beta [T, H]; lamb [H, K]; state S [rows of the table, H, K, K]
    outputs    x [T, H, K]
    layout     table, cu
    sizes      steps, at most; H heads; K key width
    constants  PRECISION of products; HALVES: A·p of fp16 parts; R tokens a program; C tokens a chunk; BK ≥ K, BS:
               see above
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, source, column = tl.program_id(2) * R + tl.arange(0, R), tl.arange(0, C), tl.arange(0, BK)
        rows = (end - first).to(tl.int32)
        in_width = column < K
        keys = load_stored(k, first, source, rows, head, H, column, K)
        ridge = tl.load(lamb + head * K + column, mask=in_width, other=1.0).to(tl.float32)
        strengths = load_scalars(beta, first, source, rows, head, H)
        carry, weights = _decays(g, first, row, source, rows, head, H, R, C)
        weights *= strengths[None]
        state += (chunk * H + head) * K * K
        if BS == BK:
            start = load_state(state, column, column, K, K)
        unit = 1.0
        if HALVES:
            # S = size·(high + low), k = length·keys; A in units of the largest weight of a k·kᵀ.
            on_diagonal = tl.load(state + column * (K + 1), mask=in_width, other=0.0)
            wide = keys.to(tl.float32)
            size, length = power_below(on_diagonal), power_below(tl.max(tl.abs(wide), axis=1))
            most = power_below(strengths)
            unit = length * length * most
            ridge *= 1 / unit
            carry *= size / unit
            weights *= 1 / most
            high, low = split_fp16(start * (1 / size))
            keys = (wide * (1 / length)).to(tl.float16)
        # b is scaled to 1, so that a small gradient does not underflow when it is squared.
        r = load_tokens(b, first, row, rows, head, H, column, K)
        scale = tl.max(tl.abs(r), axis=1)
        scale = tl.where(scale == 0, 1.0, scale)
        r *= (1 / scale)[:, None]
        # x = 0,  r = b,  p = z = Λ⁻¹·r
        inverse = reciprocal(ridge)
        z = r * inverse[None]
        rz = tl.sum(r * z, axis=1)
        lowest = tl.min(tl.where(in_width, ridge, float("inf")), axis=0)
        shrink = _shrink(rz, lowest)
        p = z * shrink[:, None]
        energy = rz
        solution = tl.zeros((R, BK), tl.float32)
        # A hundredth of the rounding error of fp32, squared: a residual below it is noise, its ratios too.
        enough = rz * 1.4e-18
        if HALVES:
            p, r, solution, rz, energy, shrink = _iterate(
                p, r, solution, rz, energy, shrink, tl.minimum(steps, EXACT), enough,
                inverse, ridge, lowest, carry, weights, keys, high, low,
                x, k, state, first, row, source, rows, head, H, column, K, PRECISION, 2, R, C, BK, BS,
            )  # fmt: skip
            p, r, solution, rz, energy, shrink = _iterate(
                p, r, solution, rz, energy, shrink, steps - EXACT, enough,
                inverse, ridge, lowest, carry, weights, keys, high, low,
                x, k, state, first, row, source, rows, head, H, column, K, PRECISION, 1, R, C, BK, BS,
            )  # fmt: skip
        else:
            whole = keys if BS < BK else start  # in tiles S is read from memory, and nothing stands for it
            p, r, solution, rz, energy, shrink = _iterate(
                p, r, solution, rz, energy, shrink, steps, enough,
                inverse, ridge, lowest, carry, weights, keys, whole, whole,
                x, k, state, first, row, source, rows, head, H, column, K, PRECISION, 0, R, C, BK, BS,
            )  # fmt: skip
        store_tokens(x, solution * (scale / unit)[:, None], first, row, rows, head, H, column, K)


_solve_narrow = Tuned(
    _solve,
    [triton.Config({"R": CHUNK}, num_warps=warps, num_stages=1) for warps in (8, 4)],
    ["K", "PRECISION"],
)
# 64 tokens of 128 numbers take more registers than four warps have; half as many fit into eight.
_solve_resident = Tuned(
    _solve,
    [triton.Config({"R": tokens}, num_warps=8, num_stages=1) for tokens in (CHUNK, CHUNK // 2)],
    ["K", "PRECISION"],
)
_solve_in_tiles = Tuned(
    _solve,
    [
        triton.Config({"R": tokens, "BS": rows}, num_warps=warps, num_stages=stages)
        for tokens, rows, warps, stages in ((32, 32, 8, 2), (32, 16, 8, 3), (32, 32, 16, 2), (16, 32, 8, 2))
    ],
    ["K", "PRECISION"],
)


def solve(
    b: Tensor, tokens: Tokens, lamb: Tensor, h_kk: Tensor, layout: ChunkLayout, steps: int, precision: str
) -> Tensor:
    """Compute (H_t + Λ)⁻¹·b_t in fp32 by at most `steps` conjugate gradients: b [B, T, H, K], h_kk [rows, H, K, K]."""
    k, _, g, beta = tokens
    heads, width = k.shape[2:]
    x = torch.empty(k.shape, dtype=torch.float32, device=k.device)
    columns = padded(width)
    resident = width <= RESIDENT
    tuned = (_solve_narrow if columns <= CHUNK else _solve_resident) if resident else _solve_in_tiles
    tiles = {"BS": columns} if resident else {}
    tuned[lambda meta: (layout.chunks, heads, CHUNK // meta["R"])](
        b, x, k, g, beta, lamb, h_kk, layout.table, layout.cu, steps, heads, width,
        PRECISION=precision, HALVES=precision == "parts" and resident, C=CHUNK, BK=columns, **tiles,
    )  # fmt: skip
    return x


# Reading the states: products of all tokens' G_t with a vector each, in tiles of 64 × 64.
#
#     o_t = G_tᵀ·x_t = c_t·Rᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s
#
# and, with other tensors in their places, dx_t = G_t·do_t, and backward in time dv_s.


@triton.jit
def _read(
    x, k, v, g, beta, state, out, table, cu, H, K, V,
    TRANSPOSED: tl.constexpr, REVERSED: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """out_t = c_t·Sᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s, a tile [C, BV]; S [K, V], or Sᵀ is there instead (TRANSPOSED).

    REVERSED in time, out_s = β_s·( e_s·Sᵀ·x_s + Σ_{t≥s} d_ts·(x_s·k_t)·v_t ).

    inputs     x, k [T, H, K]; v [T, H, V]; g, beta [T, H]; state S [rows of the table, H, K, V] or [.., V, K]
    outputs    out [T, H, V]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  TRANSPOSED, REVERSED; PRECISION of products; C tokens a chunk; BK, BV sides of the state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, rows = tl.arange(0, C), (end - first).to(tl.int32)
        column = tl.program_id(2) * BV + tl.arange(0, BV)
        state += (chunk * H + head) * K * V
        total = tl.zeros((C, BV), tl.float32)
        pairs = tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            i = start + tl.arange(0, BK)
            query = load_tokens(x, first, row, rows, head, H, i, K)
            keys = load_tokens(k, first, row, rows, head, H, i, K)
            # x_t·k_s
            pairs += tl.dot(query, tl.trans(keys), input_precision=PRECISION)
            # Sᵀ·x_t
            if TRANSPOSED:
                tile = load_state(state, column, i, V, K)
                total += tl.dot(query, tl.trans(tile), input_precision=PRECISION)
            else:
                tile = load_state(state, i, column, K, V)
                total += tl.dot(query, tile, input_precision=PRECISION)
        gates = load_scalars(g, first, row, rows, head, H)
        strength = load_scalars(beta, first, row, rows, head, H)
        values = load_tokens(v, first, row, rows, head, H, column, V)
        if REVERSED:
            # β_s·e_s·Sᵀ·x_s + Σ_{t≥s} β_s·d_ts·(x_s·k_t)·v_t
            pairs *= tl.trans(decay_of_pairs(gates, row, row)) * strength[:, None]
            total *= (decay_to_end(g, first, row, rows, head, H, C) * strength)[:, None]
        else:
            # c_t·Sᵀ·x_t + Σ_{s≤t} W_ts·(x_t·k_s)·v_s,  W_ts = β_s·d_ts
            pairs *= decay_of_pairs(gates, row, row) * strength[None]
            total *= tl.exp(tl.cumsum(gates, axis=0))[:, None]
        total += tl.dot(pairs, values, input_precision=PRECISION)
        store_tokens(out, total, first, row, rows, head, H, column, V)


def tile_configs(first: str, second: str) -> list[triton.Config]:
    """Return launch configurations whose tile's sides have these names."""
    sizes = (64, 64, 8, 1), (64, 64, 4, 1), (32, 64, 4, 2), (32, 32, 4, 2)
    return [
        triton.Config({first: rows, second: columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in sizes
    ]


_read_tuned = Tuned(_read, tile_configs("BK", "BV"), ["K", "V", "TRANSPOSED", "REVERSED", "PRECISION"])


def read(
    x: Tensor,
    tokens: Tokens,
    states: Tensor,
    dtype: torch.dtype,
    layout: ChunkLayout,
    precision: str,
    *,
    transposed: bool = False,
    backward: bool = False,
) -> Tensor:
    """Compute G_tᵀ·x_t [B, T, H, V] in `dtype`, G_t being written with k and v of `tokens`.

    states    [rows, H, K, V] before every chunk, or [rows, H, V, K] if `transposed`
    backward  in time: the tokens that wrote G read it, and `states` are those after the chunks
    """
    k, v, g, beta = tokens
    heads, height, width = k.shape[2], k.shape[3], v.shape[3]
    out = torch.empty(v.shape, dtype=dtype, device=v.device)
    _read_tuned[lambda meta: (layout.chunks, heads, triton.cdiv(width, meta["BV"]))](
        x, k, v, g, beta, states, out, layout.table, layout.cu, heads, height, width,
        TRANSPOSED=transposed, REVERSED=backward, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return out
