"""The linear systems of a chunk's tokens, solved together by one program; none of their matrices is written down."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.device import chunk_bounds, padded
from kernels.launch.tuning import Tuned
from kernels.ops.mesa.triton_tiles import (
    left_of_pairs,
    load_rows,
    load_scalars,
    load_tile,
    store_rows,
)  # fmt: skip
from kernels.ops.mesa.work import CHUNK


@triton.jit
def _solve(
    b, x, k, g, beta, lamb, state, table, cu, steps, H, K,
    PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x_t = (Λ + c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ)⁻¹·b_t for every token t of a chunk and head."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, column = tl.arange(0, C), tl.arange(0, BK)
        rows = (end - first).to(tl.int32)
        in_width = column < K
        keys = load_rows(k, first, row, rows, head, H, column, K)
        state += (chunk * H + head) * K * K
        start = load_tile(state, column, column, K, K)
        ridge = tl.load(lamb + head * K + column, mask=in_width, other=1.0).to(tl.float32)
        gates = load_scalars(g, first, row, rows, head, H)
        carry = tl.exp(tl.cumsum(gates, axis=0))[:, None]
        weights = left_of_pairs(gates, row) * load_scalars(beta, first, row, rows, head, H)[None]
        before = tl.load(state + column * (K + 1), mask=in_width, other=0.0)
        diagonal = ridge[None] + carry * before[None]
        diagonal += tl.dot(weights, keys * keys, input_precision=PRECISION)
        # b is scaled to 1, so that a small gradient does not underflow when it is squared.
        r = load_rows(b, first, row, rows, head, H, column, K)
        scale = tl.max(tl.abs(r), axis=1)
        scale = tl.where(scale == 0, 1.0, scale)
        r /= scale[:, None]
        inverse = 1 / diagonal
        p = r * inverse
        solution = tl.zeros((C, BK), tl.float32)
        rz = tl.sum(r * p, axis=1)
        # A hundredth of the rounding error of fp32, squared: a residual below it is noise, its ratios too.
        enough = rz * 1.4e-18
        step = 0
        while (step < steps) & (tl.max(rz - enough, axis=0) > 0):
            live = rz > enough
            pairs = weights * tl.dot(p, tl.trans(keys), input_precision=PRECISION)
            ap = p * ridge[None] + carry * tl.dot(p, start, input_precision=PRECISION)
            ap += tl.dot(pairs, keys, input_precision=PRECISION)
            alpha = tl.where(live, rz / tl.where(live, tl.sum(p * ap, axis=1), 1.0), 0.0)
            solution += alpha[:, None] * p
            r -= alpha[:, None] * ap
            z = r * inverse
            old = tl.where(live, rz, 1.0)
            rz = tl.sum(r * z, axis=1)
            p = z + tl.where(live, rz / old, 0.0)[:, None] * p
            step += 1
        store_rows(x, solution * scale[:, None], first, row, rows, head, H, column, K)


_solve_tuned = Tuned(
    _solve,
    [triton.Config({}, num_warps=warps, num_stages=1) for warps in (8, 4)],
    ["K", "PRECISION"],
)


def solve(
    b: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk: Tensor,
    table: Tensor,
    cu: Tensor,
    steps: int,
    precision: str,
) -> Tensor:
    """(H_t + Λ)⁻¹·b_t in fp32 by at most `steps` conjugate gradients: b [B, T, H, K], h_kk [rows, H, K, K]."""
    heads, width = k.shape[2:]
    x = torch.empty(k.shape, dtype=torch.float32, device=k.device)
    _solve_tuned[(len(table), heads)](
        b, x, k, g, beta, lamb, h_kk, table, cu, steps, heads, width,
        PRECISION=precision, C=CHUNK, BK=padded(width),
    )  # fmt: skip
    return x
