"""One token of decoding: the states' update, the solution and the output in one kernel; no gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_forward import RESIDENT, load_state, load_symmetric
from kernels.triton_common import padded
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import store_matrix
from kernels.triton_common.tuning import Tuned


@triton.jit
def _written(h_kk, left, key, gamma, strength, i, row, K):
    """Rows i of γ·H + β·k·kᵀ, `left` being k's elements i."""
    rows = strength * (left[:, None] * key[None])
    if h_kk is not None:
        rows += gamma * load_symmetric(h_kk, i, row, K)
    return rows


@triton.jit
def _write_in_tiles(h_kk, new_kk, key, gamma, strength, row, K, BK: tl.constexpr, BS: tl.constexpr):
    """Write γ·H + β·k·kᵀ, BS rows at a time."""
    for start in range(0, K, BS):
        i = start + tl.arange(0, BS)
        tile = _written(h_kk, tl.gather(key, i, 0), key, gamma, strength, i, row, K)
        store_matrix(new_kk, tile, i, row, K, K)
    tl.debug_barrier()  # it is in memory as a whole, to be read


@triton.jit
def _product(matrix, x):
    """A symmetric matrix times a vector."""
    return tl.sum(matrix * x[:, None], axis=0)


@triton.jit
def _product_in_tiles(matrix, x, row, K, BK: tl.constexpr, BS: tl.constexpr):
    """A symmetric matrix [K, K] in memory times a vector, BS rows at a time."""
    terms = tl.zeros((BS, BK), tl.float32)
    for start in range(0, K, BS):
        i = start + tl.arange(0, BS)
        terms += load_state(matrix, i, row, K, K) * tl.gather(x, i, 0)[:, None]
    return tl.sum(terms, axis=0)


@triton.jit
def _step(
    q, k, v, g, beta, lamb, h_kk, h_kv, o, new_kk, new_kv, steps, H, K, V,
    BK: tl.constexpr, BS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One sequence's and head's token. G passes through in tiles [BK, BV].

    BS = BK: H stays in registers throughout; less: the new H is read again in every step, BS rows at a time.

    inputs     q, k [N, H, K]; v [N, H, V]; g, beta [N, H]; lamb [H, K]; h_kk [N, H, K, K], h_kv [N, H, K, V] or None
    outputs    o [N, H, V]; new_kk, new_kv likewise, or None
    sizes      steps, at most; H heads; K, V widths
    constants  BK ≥ K, BS: see above; BV columns of G at a time
    """
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BK)
    in_width = row < K
    key = tl.load(k + program * K + row, mask=in_width, other=0.0).to(tl.float32)
    strength = tl.load(beta + program).to(tl.float32)
    gamma = tl.exp(tl.load(g + program).to(tl.float32))
    if h_kk is not None:
        h_kk += program * K * K
    if new_kk is not None:
        new_kk += program * K * K
    # H ← γ·H + β·k·kᵀ
    if BS == BK:
        matrix = _written(h_kk, key, key, gamma, strength, row, row, K)
        if new_kk is not None:
            store_matrix(new_kk, matrix, row, row, K, K)
    else:
        _write_in_tiles(h_kk, new_kk, key, gamma, strength, row, K, BK, BS)
    # x = 0,  r = q,  p = z = Λ⁻¹·r
    ridge = tl.load(lamb + (program % H) * K + row, mask=in_width, other=1.0).to(tl.float32)
    inverse = 1 / ridge
    r = tl.load(q + program * K + row, mask=in_width, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(r), axis=0)
    scale = tl.where(scale == 0, 1.0, scale)
    r /= scale
    p = r * inverse
    x = tl.zeros((BK,), tl.float32)
    rz = tl.sum(r * p, axis=0)
    enough = rz * 1.4e-18  # as in `_solve`; here nothing can be divided by 0 after it
    step = 0
    while (step < steps) & ((rz <= enough) == 0):  # NaN goes on, and into the solution
        # A·p = Λ·p + H·p
        ap = p * ridge
        ap += _product(matrix, p) if BS == BK else _product_in_tiles(new_kk, p, row, K, BK, BS)
        # α = rᵀz / pᵀA·p,  x ← x + α·p,  r ← r − α·A·p,  z ← Λ⁻¹·r
        alpha = rz / tl.sum(p * ap, axis=0)
        x += alpha * p
        r -= alpha * ap
        z = r * inverse
        # p ← z + (rᵀz / rᵀz before)·p
        old = rz
        rz = tl.sum(r * z, axis=0)
        p = z + (rz / old) * p
        step += 1
    x *= scale
    for start in range(0, V, BV):
        column = start + tl.arange(0, BV)
        value = tl.load(v + program * V + column, mask=column < V, other=0.0).to(tl.float32)
        # G ← γ·G + β·k·vᵀ
        tile = strength * key[:, None] * value[None]
        if h_kv is not None:
            tile += gamma * load_state(h_kv + program * K * V, row, column, K, V)
        if new_kv is not None:
            store_matrix(new_kv + program * K * V, tile, row, column, K, V)
        # o = Gᵀ·x
        out = tl.sum(tile * x[:, None], axis=0)
        tl.store(o + program * V + column, out.to(o.dtype.element_ty), mask=column < V)


_step_tuned = Tuned(
    _step,
    [
        triton.Config({"BV": columns}, num_warps=warps, num_stages=1)
        for columns, warps in ((64, 8), (64, 4), (128, 8), (32, 4))
    ],
    ["K", "V"],
)
_step_in_tiles = Tuned(
    _step,
    [
        triton.Config({"BS": rows, "BV": columns}, num_warps=warps, num_stages=1)
        for rows, columns, warps in ((64, 64, 8), (64, 64, 16), (32, 64, 8), (32, 32, 8))
    ],
    ["K", "V"],
)


@operator
def mesa_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk: Tensor | None,
    h_kv: Tensor | None,
    cg_steps: int,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute `kernels.mesa` of T = 1, without gradients, one program a sequence and head.

    q, k [B, 1, H, K], v [B, 1, H, V], g, beta [B, 1, H], lamb [H, K], H [B, H, K, K] and G [B, H, K, V] or
    Nones. Returns o [B, 1, H, V] in q's dtype and, if `output_final_state`, H and G in fp32, else Nones.
    """
    q, k, v, g, beta, lamb = (x.contiguous() for x in (q, k, v, g, beta, lamb))
    state = [x if x is None else x.contiguous() for x in (h_kk, h_kv)]
    (sequences, _, heads, width), value_width = q.shape, v.shape[3]
    o = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    columns, in_tiles = padded(width), width > RESIDENT
    # Read in tiles, the new H is in memory even where no final state is returned.
    final = [
        torch.empty(sequences, heads, width, size, dtype=torch.float32, device=q.device) if wanted else None
        for size, wanted in ((width, output_final_state or in_tiles), (value_width, output_final_state))
    ]
    tuned, tiles = (_step_in_tiles, {}) if in_tiles else (_step_tuned, {"BS": columns})
    tuned[(sequences * heads,)](
        q, k, v, g, beta, lamb, *state, o, *final, cg_steps, heads, width, value_width,
        BK=columns, **tiles,
    )  # fmt: skip
    return (o, *final) if output_final_state else (o, None, None)
