"""The linear systems (H_t + Λ)·x_t = b_t of a chunk's tokens, solved together by one program, without their matrices.

Conjugate gradients of H_t + Λ = A, preconditioned by Λ: from x = 0, r = b, z = Λ⁻¹·r, p = z,

    α = rᵀz / pᵀA·p,   x ← x + α·p,   r ← r − α·A·p,   z ← Λ⁻¹·r,   p ← z + (rᵀz / rᵀz before)·p

Half-precision inputs: A·p is taken from fp16 parts (triton_split_fp16). S is two and the keys are one, exactly. In the
first EXACT steps p and what multiplies keys are two as well, with errors of fp32; later steps correct what is left, in
four products in place of seven: along a p that is one part itself, which x moves by as well. (A p that is rounded for
the products alone ends 30 times as far from the solution: 3e-3 for sixteen keys, 2,048 times, at Λ = 0.25; fp32 1e-5.)
p is held times `shrink`, so that it stays in fp16's range while residuals fall.

A chunk's start state S of up to 128 × 128 stays in shared memory for all steps. A wider one does not fit: every
step reads it again, from the L2 cache, in tiles of rows, and since the vectors are longer too, a program solves for
half a chunk or less. A tile of rows is multiplied by the same columns of p; a tile in registers cannot be sliced, so p
goes through memory, the place of the solution.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import Tokens
from kernels.ops.mesa.triton_split_fp16 import (
    power_below,
    product_split_both,
    product_split_left,
    reciprocal,
    split_fp16,
)
from kernels.ops.mesa.triton_tiles import (
    decay_of_pairs,
    decay_to_end,
    load_scalars,
    load_state,
    load_stored,
    load_tokens,
    product,
    store_tokens,
)
from kernels.ops.mesa.work import CHUNK
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds, padded
from kernels.triton_common.tuning import Tuned

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
