"""Common parts of the Triton kernels.

tiles.py      device functions that load, store and sum tiles; the work of a kernel for a roofline; the assembler
tuning.py     tile sizes of a kernel on a device;  tuned.toml: those that job=gpu found
operators.py  Triton forms as operators that torch.compile takes whole and CUDA graphs capture

Here is what does not fit there: chunks of packed sequences, sums of rows, and checks of calls that Triton can serve.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.dispatch import constant_when_traced
from kernels.packing import boundaries, most_chunks, multiples, once
from kernels.triton_common.tiles import choose_ptxas

# Device functions and small kernels that several operations use.


@triton.jit
def chunk_bounds(table, cu, row, SIZE: tl.constexpr):
    """Return for a row of a chunk table its sequence (−1: idle), that one's first token and end, the chunk's first.

    Four int64 scalars. table int32 [rows, 2], as `chunk_tables` makes it for SIZE; cu [N+1]: bounds of sequences.
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


# Packed sequences as chunks of one size that never cross a boundary: the layout of every kernel.
#
# A batch [B, T] is B packed sequences of T tokens, so that kernels know no batches. Nothing here waits for the GPU:
# where the number of chunks depends on the boundaries, the table has a bound's length and idle rows.


@triton.jit
def _chunk_rows(cu, table, firsts, SEQUENCES, ROWS, SIZE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    """Rows of `chunk_tables`, and in the first program where each sequence begins.

    inputs     cu [SEQUENCES + 1]
    outputs    table [ROWS, 2]; firsts [SEQUENCES + 1]
    constants  SIZE of a chunk; BR rows and BN sequences at a time
    """
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    sequence, begin = tl.zeros((BR,), tl.int32), tl.zeros((BR,), tl.int32)
    total = tl.sum(tl.zeros((BN,), tl.int32), axis=0)
    for start in range(0, SEQUENCES, BN):
        number = start + tl.arange(0, BN)
        there = number < SEQUENCES
        length = tl.load(cu + number + 1, mask=there, other=0) - tl.load(cu + number, mask=there, other=0)
        count = (length.to(tl.int32) + SIZE - 1) // SIZE
        end = total + tl.cumsum(count, axis=0)
        if tl.program_id(0) == 0:
            tl.store(firsts + number + 1, end, mask=there)
        # The row's sequence is the number of those that end before it; the last of these ends where it begins.
        before = (end[None] <= row[:, None]) & there[None]
        sequence += tl.sum(before.to(tl.int32), axis=1)
        begin = tl.maximum(begin, tl.max(tl.where(before, end[None], 0), axis=1))
        total += tl.sum(count, axis=0)
    if tl.program_id(0) == 0:
        tl.store(firsts, 0)
    busy, inside = row < total, row < ROWS
    tl.store(table + 2 * row, tl.where(busy, sequence, -1), mask=inside)
    tl.store(table + 2 * row + 1, tl.where(busy, row - begin, -1), mask=inside)


def chunk_tables(x: Tensor, cu_seqlens: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Return the chunks of `size` tokens of x [B, T, ...], and where each sequence's begin; packed by one kernel.

    table   int32 [C, 2]: sequence and number within it of every chunk; −1, −1 in idle rows. Chunks stand in the order
            of the axis, those of one sequence together; the last of a sequence may be short. A batch has no idle rows;
            packed, C = ⌊(T + N·(size − 1))/size⌋, the most that N sequences may need
    firsts  int32 [N+1]: the row of the table where each sequence begins, and where the busy rows end
    """
    batch, time = x.shape[:2]
    if cu_seqlens is None:
        each = triton.cdiv(time, size)
        return once(_even_chunks, x, batch, each), once(multiples, x, each, batch + 1)
    sequences = len(cu_seqlens) - 1
    rows = most_chunks(time, sequences, size)
    table, firsts = (
        cu_seqlens.new_empty(*shape, dtype=torch.int32) for shape in ((rows, 2), (sequences + 1,))
    )
    tile = min(128, max(16, triton.next_power_of_2(sequences)))
    _chunk_rows[(max(1, triton.cdiv(rows, 32)),)](
        cu_seqlens, table, firsts, sequences, rows, SIZE=size, BR=32, BN=tile
    )
    return table, firsts


def _even_chunks(batch: int, each: int, device: torch.device) -> Tensor:
    """The table of a batch of `each` chunks a sequence."""
    # A pair is the two halves of one integer, the number the upper one: one operator, not four, for one sequence.
    pairs = torch.arange(0, each * 2**32, 2**32, device=device)
    if batch > 1:
        pairs = torch.arange(batch, device=device)[:, None] + pairs
    return pairs.view(torch.int32).view(-1, 2)


def chunk_table(x: Tensor, cu_seqlens: Tensor | None, size: int) -> Tensor:
    """Return the table [C, 2] of `chunk_tables` of x [B, T, ...]."""
    return chunk_tables(x, cu_seqlens, size)[0]


class ChunkLayout(NamedTuple):
    """Packed sequences on one token axis, cut into chunks that never cross a boundary.

    cu             int32 [N+1], where the sequences begin and end
    table, firsts  as of `chunk_tables`
    """

    cu: Tensor
    table: Tensor
    firsts: Tensor

    @staticmethod
    def of(x: Tensor, cu_seqlens: Tensor | None, size: int) -> ChunkLayout:
        """Cut the sequences of x [B, T, ...] into chunks of `size` tokens; without cu_seqlens there are B of them."""
        return ChunkLayout(boundaries(x, cu_seqlens), *chunk_tables(x, cu_seqlens, size))

    @property
    def sequences(self) -> int:
        """The number of sequences, N."""
        return len(self.cu) - 1

    @property
    def chunks(self) -> int:
        """The rows of the table, idle ones among them, C."""
        return len(self.table)


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
