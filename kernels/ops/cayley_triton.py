"""The Cayley transform in registers, one program for many matrices.

n = 4     the closed form: with a … f the upper triangle of A row by row, pf = af − be + cd, A* its dual (a and
          f, b and −e, c and d exchanged) and t = 2 / (1 + a² + … + f² + pf²),
          Q = t·[(1 + a² + … + f²)·I + A² − A − pf·A*] − I, whose diagonal is a sum of squares
other n   (I − A)·Qᵀ = I + A by Gauss-Jordan elimination; the pivot of column k is the largest among the
          rows not yet used, and says which row of Qᵀ its own becomes, so that no rows are exchanged
backward  implicit, from Q alone: with C = (Q + I)ᵀ = 2·(I + A)⁻ᵀ and X = C·Q̄·C, r̄aw = (Xᵀ − X) / 4
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
def _skew(raw, i: tl.constexpr, j: tl.constexpr, there):
    """A_ij [BM] of the matrices 4×4 that begin at raw [BM]."""
    upper = tl.load(raw + (4 * i + j), mask=there, other=0.0).to(tl.float32)
    return (upper - tl.load(raw + (4 * j + i), mask=there, other=0.0).to(tl.float32)) / 2


@triton.jit
def _store_pair(q, i: tl.constexpr, j: tl.constexpr, symmetric, skew, there):
    """Q_ij and Q_ji from the symmetric part and A's side of the skew one."""
    tl.store(q + (4 * i + j), symmetric - skew, mask=there)
    tl.store(q + (4 * j + i), symmetric + skew, mask=there)


@triton.jit
def _cayley_closed(raw, q, MATRICES, BM: tl.constexpr):
    """q of raw, [MATRICES, 4, 4], an entry of BM matrices at a time: every thread has whole matrices."""
    matrix = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    there = matrix < MATRICES
    raw += matrix * 16
    q += matrix * 16
    # A = (raw − rawᵀ) / 2
    a, b, c = _skew(raw, 0, 1, there), _skew(raw, 0, 2, there), _skew(raw, 0, 3, there)
    d, e, f = _skew(raw, 1, 2, there), _skew(raw, 1, 3, there), _skew(raw, 2, 3, there)
    # pf = af − be + cd,  t = 2 / (1 + a² + … + f² + pf²)
    pf = a * f - b * e + c * d
    aa, bb, cc, dd, ee, ff = a * a, b * b, c * c, d * d, e * e, f * f
    t = 2 / (1 + aa + bb + cc + dd + ee + ff + pf * pf)
    # Q = t·[(1 + a² + … + f²)·I + A² − A − pf·A*] − I, off the diagonal
    _store_pair(q, 0, 1, -t * (b * d + c * e), t * (a + pf * f), there)
    _store_pair(q, 0, 2, t * (a * d - c * f), t * (b - pf * e), there)
    _store_pair(q, 0, 3, t * (a * e + b * f), t * (c + pf * d), there)
    _store_pair(q, 1, 2, -t * (a * b + e * f), t * (d + pf * c), there)
    _store_pair(q, 1, 3, t * (d * f - a * c), t * (e - pf * b), there)
    _store_pair(q, 2, 3, -t * (b * c + d * e), t * (f + pf * a), there)
    # and on it, where A²_ii = −Σ_j A_ij²
    tl.store(q, t * (1 + dd + ee + ff) - 1, mask=there)
    tl.store(q + 5, t * (1 + bb + cc + ff) - 1, mask=there)
    tl.store(q + 10, t * (1 + aa + cc + ee) - 1, mask=there)
    tl.store(q + 15, t * (1 + aa + bb + dd) - 1, mask=there)


@triton.jit
def _cayley_eliminated(raw, q, MATRICES, SIZE: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """q of raw, [MATRICES, SIZE, SIZE], by elimination, in tiles N ≥ SIZE wide, BM matrices a program."""
    first, row, column, mask = matrix_tile(MATRICES, SIZE, N, BM)
    # A = (raw − rawᵀ) / 2
    a = tl.load(raw + first + row * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    a = (a - tl.load(raw + first + column * SIZE + row, mask=mask, other=0.0).to(tl.float32)) / 2
    # (I − A)·Qᵀ = I + A
    eye = tl.where(row == column, 1.0, 0.0)
    left, right = eye - a, eye + a
    index = tl.arange(0, N)[None]
    solved = tl.zeros((BM, N), tl.int32) + tl.where(index < SIZE, -1, N)  # the row of Qᵀ that a row becomes
    for k in range(SIZE):
        entries = tl.sum(tl.where(column == k, left, 0.0), axis=2)
        # One that is NaN is taken first: a search among NaNs might end at a row that is solved.
        size = tl.where(entries == entries, tl.abs(entries), float("inf"))
        largest = tl.argmax(tl.where(solved < 0, size, -1.0), axis=1)
        chosen = index == largest[:, None]
        pivot = tl.sum(tl.where(chosen, entries, 0.0), axis=1)[:, None]
        # divide the pivot's row by it and subtract its multiples from the others: column k of I − A becomes that of I
        left = _cleared(left, entries, chosen, pivot)
        right = _cleared(right, entries, chosen, pivot)
        solved = tl.where(chosen, k, solved)
    tl.store(q + first + column * SIZE + solved[:, :, None], right, mask=mask)


@triton.jit
def _cleared(matrix, entries, chosen, pivot):
    """One side of the equations after a step: the chosen row divided by its pivot, its multiples subtracted."""
    pivot_row = chosen[:, :, None]
    scaled = (tl.sum(tl.where(pivot_row, matrix, 0.0), axis=1) / pivot)[:, None, :]
    return tl.where(pivot_row, scaled, matrix - entries[:, :, None] * scaled)


@triton.jit
def _product(x, y):
    """x·y of matrices [BM, N, N]."""
    return tl.sum(x[:, :, :, None] * y[:, None, :, :], axis=2)


@triton.jit
def _cayley_backward(q, dq, draw, MATRICES, SIZE: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """draw of q and dq Q̄, all [MATRICES, SIZE, SIZE], in tiles N ≥ SIZE wide, BM matrices a program."""
    first, row, column, mask = matrix_tile(MATRICES, SIZE, N, BM)
    place = first + row * SIZE + column
    gradient = tl.load(dq + place, mask=mask, other=0.0)
    # C = (Q + I)ᵀ
    c = tl.load(q + first + column * SIZE + row, mask=mask, other=0.0) + tl.where(row == column, 1.0, 0.0)
    # X = C·Q̄·C,  r̄aw = (Xᵀ − X) / 4
    x = _product(_product(c, gradient), c)
    skew = (tl.permute(x, (0, 2, 1)) - x) / 4
    tl.store(draw + place, skew.to(draw.dtype.element_ty), mask=mask)


_ENTRIES = [triton.Config({"BM": many}, num_warps=warps) for many, warps in ((128, 4), (64, 2), (32, 1))]
_TILES = [triton.Config({"BM": many}, num_warps=warps) for many, warps in ((16, 4), (8, 2), (32, 4), (64, 8))]
_closed_tuned = Tuned(_cayley_closed, _ENTRIES, [])
_eliminated_tuned = Tuned(_cayley_eliminated, _TILES, ["SIZE"])
_backward_tuned = Tuned(_cayley_backward, _TILES, ["SIZE"])


@operator
class _Cayley(torch.autograd.Function):
    @staticmethod
    def forward(ctx, raw):
        raw = raw.contiguous()
        q = torch.empty_like(raw, dtype=torch.float32)
        if raw.shape[-1] == 4:
            _closed_tuned[_grid](raw, q, raw.numel() // 16)
        else:
            _eliminated_tuned[_grid](raw, q, **_sizes(raw))
        ctx.save_for_backward(q, raw.new_empty(0))
        return q

    @staticmethod
    @first_order
    def backward(ctx, dq):
        q, like = ctx.saved_tensors
        draw = torch.empty_like(q, dtype=like.dtype)
        _backward_tuned[_grid](q, dq.contiguous(), draw, **_sizes(q))
        return draw


def _sizes(raw: Tensor) -> dict[str, int]:
    n = raw.shape[-1]
    return {"MATRICES": raw.numel() // n**2, "SIZE": n, "N": triton.next_power_of_2(n)}


def _grid(meta: dict) -> tuple[int]:
    return (triton.cdiv(meta["MATRICES"], meta["BM"]),)


def cayley_triton(raw: Tensor) -> Tensor:
    """Compute `kernels.cayley` on a GPU: a matrix is read once and written once, its inverse stays in registers.

    raw [..., n, n], n ≤ 8, any floating dtype -> Q [..., n, n] in fp32.
    """
    return _Cayley(raw)
