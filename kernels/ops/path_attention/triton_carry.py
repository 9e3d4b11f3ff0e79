"""Keys and gates carried through later units of their path, for the backward (triton_backward.py explains the scales).

HEADS of `carry` are KV heads, those of `carry_gates` query heads. K: the padded width of keys; SPLIT: programs that
divide the rows of a unit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import load_block, minus_turned, store_block, unit_of


@triton.jit
def carry(
    key, turns, copies, far_key, table, cu, span, HEADS,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Carry the keys of a unit to the start of every later one that they reach.

    in   key [M, HEADS, C, K] at the end of their unit, turns [M, HEADS, K, K]
    out  copies [M, HEADS, UNITS·C, K]; far_key [·, HEADS, UNITS·C, K] at the end of a block's stretch, where another
         stretch follows
    """
    _, begin, end, own, number, start, stop = unit_of(
        table, cu, tl.program_id(0) // SPLIT, span, C, UNITS, NEAR
    )
    head, k_column = tl.program_id(1), tl.arange(0, K)
    line = tl.program_id(0) % SPLIT * (C // SPLIT) + tl.arange(0, C // SPLIT)
    row = ((number - start) * C).to(tl.int32) + line
    follows = (number >= 0) & (begin + (start + UNITS) * C < end)
    # far: those of the span's stretches that another follows
    reaches = (number + 1 < stop) | (NEAR & follows)
    if (number >= start) & (number >= 0) & (number < start + UNITS) & reaches:
        k_turned = load_block(key + (own * HEADS + head) * C * K, line, k_column, K).to(tl.float32)
        for later in range(1, stop - number):
            at = (own + later) * HEADS + head
            # k̃_j at the start of the unit
            store_block(copies + at * UNITS * C * K, k_turned, row, k_column, K)
            if turns is not None:
                # through the unit: k̃ ← k̃ − k̃·D
                k_turned = minus_turned(k_turned, turns + at * K * K, K, False)
        if far_key is not None:
            at = (begin + start * C) // (UNITS * C) * HEADS + head
            place = far_key + at * UNITS * C * K + row[:, None] * K + k_column[None]
            tl.store(place, k_turned.to(far_key.dtype.element_ty), mask=follows & (row >= 0)[:, None])


@triton.jit
def carry_gates(before, after, sums, table, cu, span, HEADS, C: tl.constexpr, UNITS: tl.constexpr):
    """Sum gates from the tokens of a span's stretches to the start of every later one.

    in   before, after [M, HEADS, C]
    out  sums [M, HEADS, UNITS·C]
    """
    _, _, _, own, number, start, stop = unit_of(table, cu, tl.program_id(0), span, C, UNITS, False)
    head, row = tl.program_id(1), tl.arange(0, C)
    if (number >= start) & (number >= 0) & (number < start + UNITS) & (number + 1 < stop):
        gate_sum = tl.load(after + (own * HEADS + head) * C + row)
        for later in range(1, stop - number):
            at = (own + later) * HEADS + head
            # Σ_{s=j+1..last} g_s of the stretches before
            tl.store(sums + (at * UNITS + number - start) * C + row, gate_sum)
            gate_sum += tl.load(before + at * C + C - 1)
