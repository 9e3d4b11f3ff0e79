"""Sinkhorn-Knopp in registers, one program for many matrices.

In log space the matrix after t iterations is log M_ij = raw_ij − u_i − v_j, and an iteration is

    v_j = log Σ_i exp(raw_ij − u_i)   (columns),      u_i = log Σ_j exp(raw_ij − v_j)   (rows)

so that n numbers u, 0 at first, are a matrix's whole state: any finite raw, and nothing adds up over iterations.

    forward   saved: raw and the result
    backward  the forward runs again and stores every u in a tile, of which a mask picks one; from the last iteration
              to the first, v is computed again, and both steps are differentiated as softmaxes, from d = M ⊙ M̄:
              d ← d − S_rows·Σ_j d,  d ← d − S_columns·Σ_i d
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import matrix_tile
from kernels.triton_common.tuning import Tuned


@triton.jit
def _load_raw(raw, place, row, column, mask, SIZE: tl.constexpr):
    """raw [BM, N, N]; its padding is a block of its own on the diagonal, with −∞ between, so that no sum mixes them."""
    apart = (row < SIZE) != (column < SIZE)
    return tl.where(apart, -float("inf"), tl.load(raw + place, mask=mask, other=0.0).to(tl.float32))


@triton.jit
def _log_sum(x, axis: tl.constexpr):
    """log Σ exp x over an axis."""
    top = tl.max(x, axis=axis)
    return top + tl.log(tl.sum(tl.exp(x - tl.expand_dims(top, axis)), axis=axis))


@triton.jit
def _iterate(logs, u):
    """One iteration: the next u, and the v between."""
    # v_j = log Σ_i exp(raw_ij − u_i)
    v = _log_sum(logs - u[:, :, None], 1)
    # u_i = log Σ_j exp(raw_ij − v_j)
    return _log_sum(logs - v[:, None, :], 2), v


@triton.jit
def _sinkhorn_forward(raw, out, MATRICES, ITERS, SIZE: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """out of raw, both [MATRICES, SIZE, SIZE], in tiles N ≥ SIZE wide, BM matrices a program."""
    first, row, column, mask = matrix_tile(MATRICES, SIZE, N, BM)
    place = first + row * SIZE + column
    logs = _load_raw(raw, place, row, column, mask, SIZE)
    u, v = tl.zeros((BM, N), tl.float32), tl.zeros((BM, N), tl.float32)
    for _ in range(ITERS):
        u, v = _iterate(logs, u)
    # M_ij = exp(raw_ij − u_i − v_j)
    tl.store(out + place, tl.exp(logs - v[:, None, :] - u[:, :, None]), mask=mask)


@triton.jit
def _sinkhorn_backward(
    raw, out, dout, draw, MATRICES, ITERS,
    SIZE: tl.constexpr, N: tl.constexpr, STATES: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """draw of raw, out M and dout M̄, all [MATRICES, SIZE, SIZE]; STATES, a power of two, is more than ITERS."""
    first, row, column, mask = matrix_tile(MATRICES, SIZE, N, BM)
    place = first + row * SIZE + column
    logs = _load_raw(raw, place, row, column, mask, SIZE)
    step = tl.arange(0, STATES)[None, None]
    # u of every iteration
    states, after = tl.zeros((BM, N, STATES), tl.float32), tl.zeros((BM, N), tl.float32)
    for done in range(ITERS):
        after, _v = _iterate(logs, after)
        states = tl.where(step == done + 1, after[:, :, None], states)
    # d = M ⊙ M̄
    d = tl.load(dout + place, mask=mask, other=0.0) * tl.load(out + place, mask=mask, other=0.0)
    for done in range(ITERS):
        before = tl.sum(tl.where(step == ITERS - 1 - done, states, 0.0), axis=2)
        v = _log_sum(logs - before[:, :, None], 1)
        # d ← d − S_rows·Σ_j d,  S_rows = exp(raw − v − u)
        columns = logs - v[:, None, :]
        d -= tl.exp(columns - after[:, :, None]) * tl.sum(d, axis=2)[:, :, None]
        # d ← d − S_columns·Σ_i d,  S_columns = exp(raw − v − u before)
        d -= tl.exp(columns - before[:, :, None]) * tl.sum(d, axis=1)[:, None, :]
        after = before
    tl.store(draw + place, d.to(draw.dtype.element_ty), mask=mask)


_TILES = [
    triton.Config({"BM": many}, num_warps=warps) for many, warps in ((64, 4), (32, 4), (32, 1), (256, 8))
]
_forward_tuned = Tuned(_sinkhorn_forward, _TILES, ["SIZE", "ITERS"])
_backward_tuned = Tuned(_sinkhorn_backward, _TILES, ["SIZE", "ITERS"])


@operator
class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, raw, iters):
        raw = raw.contiguous()
        out = torch.empty_like(raw, dtype=torch.float32)
        _forward_tuned[_grid](raw, out, **_sizes(raw, iters))
        ctx.save_for_backward(raw, out)
        ctx.iters = iters
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        raw, out = ctx.saved_tensors
        draw = torch.empty_like(raw)
        states = triton.next_power_of_2(ctx.iters + 1)
        _backward_tuned[_grid](raw, out, dout.contiguous(), draw, STATES=states, **_sizes(raw, ctx.iters))
        return draw, None


def _sizes(raw: Tensor, iters: int) -> dict[str, int]:
    n = raw.shape[-1]
    return {"MATRICES": raw.numel() // n**2, "ITERS": iters, "SIZE": n, "N": triton.next_power_of_2(n)}


def _grid(meta: dict) -> tuple[int]:
    return (triton.cdiv(meta["MATRICES"], meta["BM"]),)


def sinkhorn_triton(raw: Tensor, *, iters: int) -> Tensor:
    """Compute `kernels.sinkhorn` on a GPU: a matrix is read once and written once each way.

    raw [..., n, n], any floating dtype -> [..., n, n] in fp32.
    """
    return _Sinkhorn(raw, iters)
