"""Rotary positions of up to three tensors in one pass; saved: cosines and sines alone.

y_2i = x_2i·c_i − x_2i+1·s_i,   y_2i+1 = x_2i·s_i + x_2i+1·c_i;   x̄ of ȳ likewise, with −s
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common.operators import operator

MOST = 3
"""Tensors of a launch."""


@triton.jit
def _head(
    x, y, cos, sin, head, HEADS, X_ROW, X_HEAD, sign, ROWS, TABLE,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """A head of BR tokens: x, rows X_ROW and heads X_HEAD apart, to y [ROWS, HEADS, WIDTH]."""
    row = (tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR))[:, None]
    pair = tl.arange(0, BP)[None]
    there = (row < ROWS) & (pair < WIDTH // 2)
    turns = there & (pair < TURNED // 2)
    at = (row % TABLE) * (TURNED // 2) + pair
    c = tl.load(cos + at, mask=turns, other=0.0)
    s = sign * tl.load(sin + at, mask=turns, other=0.0)
    source = x + row * X_ROW + head * X_HEAD + 2 * pair
    even = tl.load(source, mask=there, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=there, other=0.0).to(tl.float32)
    place = y + (row * HEADS + head) * WIDTH + 2 * pair
    kind = y.dtype.element_ty
    tl.store(place, tl.where(turns, even * c - odd * s, even).to(kind), mask=there)
    tl.store(place + 1, tl.where(turns, even * s + odd * c, odd).to(kind), mask=there)


@triton.jit
def _rotate(
    x0, x1, x2, y0, y1, y2, cos, sin, sign, ROWS, TABLE, ROW0, HEAD0, ROW1, HEAD1, ROW2, HEAD2,
    HEADS0: tl.constexpr, HEADS1: tl.constexpr, HEADS2: tl.constexpr,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """A head of BR tokens of one of three tensors.

    inputs     x0, x1, x2 [ROWS, HEADS, WIDTH], rows ROW and heads HEAD apart; cos, sin [TABLE, TURNED/2], whose rows
               repeat; sign of the angles
    outputs    y0, y1, y2 [ROWS, HEADS, WIDTH]
    constants  the tensors' HEADS, 0 for one that is not there; TURNED channels turn; BR rows; BP ≥ WIDTH/2 pairs
    """
    head = tl.program_id(1)
    if head < HEADS0:
        _head(x0, y0, cos, sin, head, HEADS0, ROW0, HEAD0, sign, ROWS, TABLE, WIDTH, TURNED, BR, BP)
    elif head < HEADS0 + HEADS1:
        _head(x1, y1, cos, sin, head - HEADS0, HEADS1, ROW1, HEAD1, sign, ROWS, TABLE, WIDTH, TURNED, BR, BP)
    else:
        before = HEADS0 + HEADS1
        _head(x2, y2, cos, sin, head - before, HEADS2, ROW2, HEAD2, sign, ROWS, TABLE, WIDTH, TURNED, BR, BP)


def _turned(xs: Sequence[Tensor | None], cos: Tensor, sin: Tensor, sign: float) -> tuple[Tensor | None, ...]:
    """The tensors [B, T, H_i, D], those that are there, rotated by sign times the angles."""
    given = [x for x in xs if x is not None]
    outs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in given]
    rows = [x.flatten(0, 1) for x in given]
    rows = [x if x.stride(-1) == 1 else x.contiguous() for x in rows]
    count, _, width = rows[0].shape
    pairs, spare = triton.next_power_of_2(width // 2), MOST - len(rows)
    heads = [x.shape[1] for x in rows] + [0] * spare
    padded = [*rows, *rows[:1] * spare]
    tile = max(1, min(64, 1024 // pairs))  # 16 numbers a thread
    _rotate[triton.cdiv(count, tile), sum(heads)](
        *padded, *outs, *outs[:1] * spare, cos, sin, sign, count, len(cos),
        *(stride for x in padded for stride in x.stride()[:2]), *heads,
        WIDTH=width, TURNED=2 * cos.shape[1], BR=tile, BP=pairs, num_warps=4,
    )  # fmt: skip
    made = iter(outs)
    return tuple(None if x is None else next(made) for x in xs)


@operator
class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x0, x1, x2, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _turned((x0, x1, x2), cos, sin, 1.0)

    @staticmethod
    @first_order
    def backward(ctx, *dys):
        return *_turned(dys, *ctx.saved_tensors, -1.0), None, None


def rope_triton(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Compute `kernels.rope_each` on a GPU, one launch each way. xs [B, T, H_i, D]; cos, sin [1 or B, T, 1, W/2]."""
    given = [*xs, *(None,) * (MOST - len(xs))]
    table = [x.contiguous().flatten(0, 2) for x in (cos, sin)]
    return _Rope(*given, *table, returns=tuple(x is not None for x in given))[: len(xs)]
