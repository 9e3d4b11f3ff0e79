"""Common parts of the Triton kernels.

tiles.py   device functions that load, store and sum tiles; the work of a kernel for a roofline; the assembler
tuning.py  tile sizes of a kernel on a device

Here are what does not fit there: bounds of chunks, sums of rows, and checks of the calls that Triton can serve.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dispatch import constant_when_traced
from kernels.triton_common.tiles import choose_ptxas

# Device functions and small kernels that several operations use.


@triton.jit
def chunk_bounds(table, cu, row, SIZE: tl.constexpr):
    """Return for a row of a chunk table its sequence (−1: idle), that one's first token and end, the chunk's first.

    Four int64 scalars. table int32 [rows, 2], as `chunk_table` makes it for SIZE tokens; cu [N+1], bounds of sequences.
    """
    sequence = tl.load(table + row * 2).to(tl.int64)
    busy = tl.maximum(sequence, 0)
    begin = tl.load(cu + busy).to(tl.int64)
    end = tl.load(cu + busy + 1).to(tl.int64)
    return sequence, begin, end, begin + tl.load(table + row * 2 + 1).to(tl.int64) * SIZE


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(−x)) of x [...] in fp32, elementwise."""
    return 1 / (1 + tl.exp(-x))


def padded(width: int) -> int:
    """Return the columns of a tile for rows of this width: a power of two, at least the 16 of a matrix product."""
    return max(16, triton.next_power_of_2(width))


def spans(tokens: int, most: int, least: int) -> tuple[int, int]:
    """Return the tokens of a span, a multiple of `least`, and the number of spans, at most `most`."""
    span = triton.cdiv(max(1, tokens), most * least) * least
    return span, triton.cdiv(tokens, span)


@triton.jit
def _sum_rows(parts, total, ROWS, COLUMNS, BR: tl.constexpr, BC: tl.constexpr):
    """total [COLUMNS] = Σ over rows of parts [ROWS, COLUMNS], in one fixed order."""
    column = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    accumulated = tl.zeros((BC,), tl.float32)
    for start in range(0, ROWS, BR):
        row = start + tl.arange(0, BR).to(tl.int64)
        mask = (row < ROWS)[:, None] & (column < COLUMNS)[None]
        block = tl.load(parts + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0)
        accumulated += tl.sum(block.to(tl.float32), axis=0)
    tl.store(total + column, accumulated.to(total.dtype.element_ty), mask=column < COLUMNS)


def sum_rows(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum contiguous fp32 parts [n, ...] over their first dimension, to [...] in `dtype`; the same bits at every run.

    Kernels use it instead of atomic additions, whose order, and so whose last bits, change from run to run.
    """
    total = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    rows, columns = parts.shape[0], total.numel()
    tile_rows = min(32, triton.next_power_of_2(max(1, rows)))
    tile_columns = 2048 // tile_rows  # as much in flight for two parts a number as for many
    grid = (triton.cdiv(columns, tile_columns),)
    _sum_rows[grid](parts, total, rows, columns, BR=tile_rows, BC=tile_columns)
    return total


# Checks of the calls that a Triton kernel serves, with reasons; Triton itself is imported late, as that takes time.

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_WIDTH = 256
"""The widest head that a tile holds; narrower ones need not be powers of two."""


@constant_when_traced
def fault() -> str | None:
    """Return why there is no Triton in this process; None if there is."""
    return _fault()


@functools.cache
def _fault() -> str | None:
    try:
        importlib.import_module("triton")
    except Exception as error:  # it may be missing, or lack a part of its own
        return f"triton cannot be imported ({error}); pip install triton"
    return None


@constant_when_traced
def interpreted() -> bool:
    """Say whether kernels run in Triton's interpreter: TRITON_INTERPRET=1 was set before they were imported."""
    if fault() is not None:
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def refusal(*tensors: Tensor | None, widths: tuple[int, ...] = ()) -> str | None:
    """Return why Triton kernels cannot take these tensors, of any shape [...] or None; None if they can.

    widths: sizes that a tile has to hold whole, such as head widths.
    """
    if (reason := fault()) is not None:
        return reason
    for x in tensors:
        if x is not None and x.is_floating_point() and (reason := _refuses_one(x)):
            return reason
    if max(widths, default=0) > MAX_WIDTH:
        return f"needs widths of at most {MAX_WIDTH}, got {max(widths)}"
    return None


def _refuses_one(x: Tensor) -> str | None:
    if x.is_meta:
        return "needs tensors with data, got meta"
    if x.dtype not in DTYPES:
        return f"needs bfloat16, float16 or float32, got {str(x.dtype).removeprefix('torch.')}"
    if x.is_cuda:
        return None
    if not interpreted():
        return (
            f"needs CUDA tensors, got {x.device.type}; to run kernels on a CPU, slowly, set TRITON_INTERPRET=1 "
            "before Python starts"
        )
    if x.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 matrices wrongly; check in float32 or float16"
    return None


_FORMS: dict[tuple[str, str], dict[str, Callable]] = {}


def lazily(module: str, name: str) -> Callable:
    """Return the function `name` of `module`, imported at its first call: importing Triton takes time.

    torch.compile traces it as far as its operators (`kernels.triton_common.operators`).
    """
    form = _FORMS[module, name] = {}  # by itself: a tracer that has read a dictionary misses what joins it

    def call(*args, **options):
        _load(module, name)
        return form["run"](*args, **options)

    return call


@constant_when_traced
def _load(module: str, name: str) -> None:
    if not (form := _FORMS[module, name]):
        choose_ptxas()
        form["run"] = getattr(importlib.import_module(module), name)


__all__ = ["interpreted", "lazily", "refusal"]
