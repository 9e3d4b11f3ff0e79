"""The linear systems (H_t + Λ)·x_t = b_t of a chunk's tokens, solved together by one program, without their matrices.

Conjugate gradients, preconditioned by the diagonal D of H_t + Λ = A: from x = 0, r = b, z = D⁻¹·r, p = z,

    α = rᵀz / pᵀA·p,   x ← x + α·p,   r ← r − α·A·p,   z ← D⁻¹·r,   p ← z + (rᵀz / rᵀz before)·p

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


@triton.jit
def _in_tiles(
    p, x, k, state, first, row, source, rows, head, H, column, K,
    PRECISION: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """p·kᵀ [R, C] and p·S [R, BK], S in tiles of BS rows; overwrites x by p."""
    store_tokens(x, p, first, row, rows, head, H, column, K)
    tl.debug_barrier()  # p is there as a whole
    pairs = tl.zeros((R, C), tl.float32)
    carried = tl.zeros((R, BK), tl.float32)
    for start in range(0, K, BS):
        i = start + tl.arange(0, BS)
        part = load_tokens(x, first, row, rows, head, H, i, K)
        keys = load_stored(k, first, source, rows, head, H, i, K)
        pairs += product(part, tl.trans(keys), PRECISION)
        tile = load_state(state, i, column, K, K)
        carried += product(part, tile, PRECISION)
    tl.debug_barrier()  # every thread has read it, the next p may come
    return pairs, carried


@triton.jit
def _solve(
    b, x, k, g, beta, lamb, state, table, cu, steps, H, K,
    PRECISION: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """x_t = (Λ + c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ)⁻¹·b_t for R tokens t of a chunk and head.

    BS = BK: S [BK, BK] is held; less: it is read again in every step, BS rows at a time.

    inputs     b [T, H, K]; k [T, H, K]; g, beta [T, H]; lamb [H, K]; state S [rows of the table, H, K, K]
    outputs    x [T, H, K]
    layout     table, cu
    sizes      steps, at most; H heads; K key width
    constants  PRECISION of products; R tokens a program; C tokens a chunk; BK ≥ K, BS: see above
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        offset = tl.program_id(2) * R
        row, source, column = offset + tl.arange(0, R), tl.arange(0, C), tl.arange(0, BK)
        rows = (end - first).to(tl.int32)
        in_width = column < K
        keys = load_stored(k, first, source, rows, head, H, column, K)
        state += (chunk * H + head) * K * K
        if BS == BK:
            start = load_state(state, column, column, K, K)
        ridge = tl.load(lamb + head * K + column, mask=in_width, other=1.0).to(tl.float32)
        gates = load_scalars(g, first, row, rows, head, H)
        # c_t = exp(Σ_{r≤t} g_r)
        carry = tl.exp(tl.cumsum(gates, axis=0))[:, None]
        # W_ts = β_s·exp(Σ_{s<r≤t} g_r)
        weights = decay_of_pairs(gates, row, source)
        weights *= load_scalars(beta, first, source, rows, head, H)[None]
        if R < C:  # the decay up to the first of the R tokens
            earlier = tl.minimum(rows, offset)
            carry *= tl.exp(tl.sum(load_scalars(g, first, source, earlier, head, H), axis=0))
            weights *= decay_to_end(g, first, source, earlier, head, H, C)[None]
        # D_t = diag(Λ + c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ)
        before = tl.load(state + column * (K + 1), mask=in_width, other=0.0)
        diagonal = ridge[None] + carry * before[None]
        wide = keys.to(tl.float32)
        diagonal += product(weights, wide * wide, PRECISION)
        # b is scaled to 1, so that a small gradient does not underflow when it is squared.
        r = load_tokens(b, first, row, rows, head, H, column, K)
        scale = tl.max(tl.abs(r), axis=1)
        scale = tl.where(scale == 0, 1.0, scale)
        r /= scale[:, None]
        # x = 0,  r = b,  p = z = D⁻¹·r
        inverse = 1 / diagonal
        p = r * inverse
        solution = tl.zeros((R, BK), tl.float32)
        rz = tl.sum(r * p, axis=1)
        # A hundredth of the rounding error of fp32, squared: a residual below it is noise, its ratios too.
        enough = rz * 1.4e-18
        step = 0
        while (step < steps) & (tl.max(rz - enough, axis=0) > 0):
            live = rz > enough
            # A·p = Λ·p + c_t·S·p + Σ_{s≤t} W_ts·k_s·(k_sᵀ·p)
            if BS == BK:
                pairs = product(p, tl.trans(keys), PRECISION)
                carried = product(p, start, PRECISION)
            else:
                pairs, carried = _in_tiles(
                    p, x, k, state, first, row, source, rows, head, H, column, K, PRECISION, R, C, BK, BS
                )
            ap = p * ridge[None] + carry * carried
            ap += product(weights * pairs, keys, PRECISION)
            # α = rᵀz / pᵀA·p
            alpha = tl.where(live, rz / tl.where(live, tl.sum(p * ap, axis=1), 1.0), 0.0)
            # x ← x + α·p,  r ← r − α·A·p,  z ← D⁻¹·r
            solution += alpha[:, None] * p
            r -= alpha[:, None] * ap
            z = r * inverse
            # p ← z + (rᵀz / rᵀz before)·p
            old = tl.where(live, rz, 1.0)
            rz = tl.sum(r * z, axis=1)
            p = z + tl.where(live, rz / old, 0.0)[:, None] * p
            step += 1
        store_tokens(x, solution * scale[:, None], first, row, rows, head, H, column, K)


_solve_tuned = Tuned(
    _solve,
    [triton.Config({}, num_warps=warps, num_stages=1) for warps in (8, 4)],
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
    tuned, tiles = (_solve_in_tiles, {}) if width > RESIDENT else (_solve_tuned, {"R": CHUNK, "BS": columns})
    tuned[lambda meta: (layout.chunks, heads, CHUNK // meta["R"])](
        b, x, k, g, beta, lamb, h_kk, layout.table, layout.cu, steps, heads, width,
        PRECISION=precision, C=CHUNK, BK=columns, **tiles,
    )  # fmt: skip
    return x
