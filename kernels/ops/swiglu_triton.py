"""SiLU(gate) ⊙ up, in one pass over both each way; saved: the inputs alone.

    forward   h = g·σ(g)·u
    backward  ū = h̄·g·σ(g),   ḡ = h̄·u·σ(g)·(1 + g·(1 − σ(g)))

Rows of the inputs may be apart, as those of two parts of one product are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.triton_common import sigmoid
from kernels.triton_common.operators import operator


@triton.jit
def _place(ROWS, WIDTH, BR: tl.constexpr, BC: tl.constexpr):
    """The program's rows [BR, 1], columns [1, BC], and which pairs exist."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    return row[:, None], column[None], (row < ROWS)[:, None] & (column < WIDTH)[None]


@triton.jit
def _swiglu_forward(gate, up, out, ROWS, WIDTH, GATE_ROW, UP_ROW, BR: tl.constexpr, BC: tl.constexpr):
    """h of gate and up.

    inputs     gate, up [ROWS, WIDTH], rows GATE_ROW and UP_ROW numbers apart
    outputs    out h [ROWS, WIDTH]
    constants  BR rows and BC columns of a program
    """
    row, column, there = _place(ROWS, WIDTH, BR, BC)
    g = tl.load(gate + row * GATE_ROW + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * UP_ROW + column, mask=there, other=0.0).to(tl.float32)
    h = g * sigmoid(g) * u
    tl.store(out + row * WIDTH + column, h.to(out.dtype.element_ty), mask=there)


@triton.jit
def _swiglu_backward(
    gate, up, dout, dgate, dup, ROWS, WIDTH, GATE_ROW, UP_ROW, BR: tl.constexpr, BC: tl.constexpr
):
    """The gradients of both inputs of `_swiglu_forward`.

    inputs     gate, up as there; dout h̄ [ROWS, WIDTH]
    outputs    dgate, dup [ROWS, WIDTH]
    constants  as there
    """
    row, column, there = _place(ROWS, WIDTH, BR, BC)
    g = tl.load(gate + row * GATE_ROW + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(up + row * UP_ROW + column, mask=there, other=0.0).to(tl.float32)
    place = row * WIDTH + column
    d = tl.load(dout + place, mask=there, other=0.0).to(tl.float32)
    s = sigmoid(g)
    tl.store(dup + place, (d * g * s).to(dup.dtype.element_ty), mask=there)
    tl.store(dgate + place, (d * u * s * (1 + g * (1 - s))).to(dgate.dtype.element_ty), mask=there)


ROWS, COLUMNS = 4, 512
"""Of a program: 16 numbers a thread of each input, which a memory-bound kernel needs no more of."""


def _rows(x: Tensor) -> Tensor:
    """x [..., F] as rows [M, F] whose numbers are neighbours; a copy where no view has that."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _launch(kernel, gate: Tensor, up: Tensor, *more: Tensor) -> None:
    count, width = gate.shape
    grid = (triton.cdiv(count, ROWS), triton.cdiv(width, COLUMNS))
    sizes = {"ROWS": count, "WIDTH": width, "GATE_ROW": gate.stride(0), "UP_ROW": up.stride(0)}
    kernel[grid](gate, up, *more, **sizes, BR=ROWS, BC=COLUMNS, num_warps=4)


@operator
class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        _launch(_swiglu_forward, _rows(gate), _rows(up), out)
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        gate, up = ctx.saved_tensors
        dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
        _launch(_swiglu_backward, _rows(gate), _rows(up), dout.contiguous(), dgate, dup)
        return dgate, dup


def swiglu_triton(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `kernels.swiglu` on a GPU: memory-bound, every number read once each way. gate, up [..., F]."""
    return _SwiGLU(gate, up)
