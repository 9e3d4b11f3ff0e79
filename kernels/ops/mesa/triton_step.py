"""One token of decoding: the states' update, the solution and the output in one kernel; no gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.device import padded
from kernels.launch.tuning import Tuned
from kernels.ops.mesa.triton_tiles import load_symmetric, load_tile, store_tile


@triton.jit
def _product(matrix, x):
    """A symmetric matrix times a vector."""
    return tl.sum(matrix * x[:, None], axis=0)


@triton.jit
def _step(
    q, k, v, g, beta, lamb, h_kk, h_kv, o, new_kk, new_kv, steps, H, K, V,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One sequence's and head's token. H stays in registers throughout; G passes through in tiles [BK, BV]."""
    program = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BK)
    in_width = row < K
    key = tl.load(k + program * K + row, mask=in_width, other=0.0).to(tl.float32)
    strength = tl.load(beta + program).to(tl.float32)
    gamma = tl.exp(tl.load(g + program).to(tl.float32))
    matrix = strength * (key[:, None] * key[None])
    if h_kk is not None:
        matrix += gamma * load_symmetric(h_kk + program * K * K, row, row, K)
    if new_kk is not None:
        store_tile(new_kk + program * K * K, matrix, row, row, K, K)
    ridge = tl.load(lamb + (program % H) * K + row, mask=in_width, other=1.0).to(tl.float32)
    inverse = 1 / (ridge + tl.sum(tl.where(row[:, None] == row[None], matrix, 0.0), axis=0))
    r = tl.load(q + program * K + row, mask=in_width, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(r), axis=0)
    scale = tl.where(scale == 0, 1.0, scale)
    r /= scale
    p = r * inverse
    x = tl.zeros((BK,), tl.float32)
    rz = tl.sum(r * p, axis=0)
    enough = rz * 1.4e-18  # as in triton_solve; here nothing can be divided by 0 behind it
    step = 0
    while (step < steps) & (rz > enough):
        ap = p * ridge + _product(matrix, p)
        alpha = rz / tl.sum(p * ap, axis=0)
        x += alpha * p
        r -= alpha * ap
        z = r * inverse
        old = rz
        rz = tl.sum(r * z, axis=0)
        p = z + (rz / old) * p
        step += 1
    x *= scale
    for start in range(0, V, BV):
        column = start + tl.arange(0, BV)
        value = tl.load(v + program * V + column, mask=column < V, other=0.0).to(tl.float32)
        tile = strength * key[:, None] * value[None]
        if h_kv is not None:
            tile += gamma * load_tile(h_kv + program * K * V, row, column, K, V)
        if new_kv is not None:
            store_tile(new_kv + program * K * V, tile, row, column, K, V)
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


def mesa_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    cg_steps: int,
    state: tuple[Tensor | None, Tensor | None],
    output_final_state: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """`kernels.mesa` for tokens [N, 1, H, ...], one program a sequence and head."""
    q, k, v, g, beta, lamb = (x.contiguous() for x in (q, k, v, g, beta, lamb))
    state = [x if x is None else x.contiguous() for x in state]
    (sequences, _, heads, width), value_width = q.shape, v.shape[3]
    o = torch.empty(v.shape, dtype=q.dtype, device=q.device)
    final = (None, None)
    if output_final_state:
        sizes = ((sequences, heads, width, columns) for columns in (width, value_width))
        final = tuple(torch.empty(size, dtype=torch.float32, device=q.device) for size in sizes)
    _step_tuned[(sequences * heads,)](
        q, k, v, g, beta, lamb, *state, o, *final, cg_steps, heads, width, value_width,
        BK=padded(width),
    )  # fmt: skip
    return o, final if output_final_state else None
