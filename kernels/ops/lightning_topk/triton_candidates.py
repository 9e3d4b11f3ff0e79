"""Shelves of candidates: what a query has seen above its floor, thinned to the best when the shelf is full.

A shelf has the ranks and the positions of candidates [2, SHELF], in the order in which they came, which is from the
latest to the earliest. Of equal ranks the earlier come out first. Notes are where vectors over a program's queries
are exchanged between threads.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _best(ranks, wanted):
    """Of candidates [ROWS, SHELF], −1 where there is none, the best `wanted`: which, and the lowest rank among them.

    The lowest rank is put together bit by bit: the largest number that still `wanted` candidates reach. It is 0
    where there are fewer, and all are chosen.
    """
    lowest = tl.zeros(wanted.shape, tl.int32)
    for step in range(31):
        higher = lowest | (1 << (30 - step))
        reach = tl.sum((ranks >= higher[:, None]).to(tl.int32), axis=1)
        lowest = tl.where(reach >= wanted, higher, lowest)
    above = ranks > lowest[:, None]
    tie = ranks == lowest[:, None]
    ties_wanted = wanted - tl.sum(above.to(tl.int32), axis=1)
    return above | (tie & (tl.cumsum(tie.to(tl.int32), axis=1) <= ties_wanted[:, None])), lowest


@triton.jit
def _on_shelf(shelf, notes, row, SHELF: tl.constexpr):
    """Cells [ROWS, SHELF] of the shelves of these rows, and their ranks, −1 in empty ones."""
    column = tl.arange(0, SHELF)
    cell = shelf + row[:, None] * (2 * SHELF) + column[None]
    filled = column[None] < tl.load(notes + row)[:, None]
    return cell, tl.load(cell, mask=filled, other=-1)


@triton.jit
def prune(shelf, notes, kept, K_MAX, BQ: tl.constexpr, SHELF: tl.constexpr, ROWS: tl.constexpr):
    """Leave the best K_MAX on every shelf: how many are left, and the rank that newcomers have to beat, [BQ] each."""
    line = tl.arange(0, BQ)
    tl.store(notes + line, kept)
    tl.debug_barrier()
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _on_shelf(shelf, notes, row, SHELF)
        chosen, lowest = _best(ranks, tl.full((ROWS,), 0, tl.int32) + K_MAX)
        places = tl.load(cell + SHELF, mask=chosen, other=0)
        many = tl.sum(chosen.to(tl.int32), axis=1)
        target = shelf + row[:, None] * (2 * SHELF) + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
        tl.debug_barrier()  # all have read before any writes
        tl.store(target, ranks, mask=chosen)
        tl.store(target + SHELF, places, mask=chosen)
        tl.store(notes + row, many)
        tl.store(notes + BQ + row, tl.where(many < K_MAX, -1, lowest))
    tl.debug_barrier()
    return tl.load(notes + line), tl.load(notes + BQ + line)


@triton.jit
def take(
    shelf, notes, kept, wanted, out, exists, first, K_MAX,
    BQ: tl.constexpr, SHELF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out [BQ, K_MAX]: the positions of the best `wanted` from `first` on, in the shelf's order, then −1."""
    line = tl.arange(0, BQ)
    tl.store(notes + line, kept)
    tl.store(notes + BQ + line, tl.where(exists, wanted, 0))
    tl.debug_barrier()
    column = tl.arange(0, SHELF)[None]
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _on_shelf(shelf, notes, row, SHELF)
        fewest = tl.load(notes + BQ + row)
        chosen, _lowest = _best(ranks, fewest)
        places = tl.load(cell + SHELF, mask=chosen, other=0)
        target = out + row.to(tl.int64)[:, None] * K_MAX
        many = tl.sum(chosen.to(tl.int32), axis=1)
        tl.store(
            target + tl.cumsum(chosen.to(tl.int32), axis=1) - 1, (first + places).to(tl.int32), mask=chosen
        )
        unused = (column >= many[:, None]) & (column < K_MAX) & (fewest > 0)[:, None]
        tl.store(target + column, tl.full((ROWS, SHELF), -1, tl.int32), mask=unused)
    tl.debug_barrier()  # the next queries write to the same shelves
