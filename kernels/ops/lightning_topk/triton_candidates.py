"""Candidate buffers: the keys of a query whose rank is above its floor, pruned to the best when the buffer is full.

A buffer has the ranks and the positions of candidates [2, CAPACITY], in the order in which they came, which is from the
latest to the earliest. Of equal ranks the later keys stay. Vectors over a program's queries are exchanged between
threads through scratch memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _top_candidates(ranks, wanted):
    """A mask of the best `wanted` candidates, and the lowest rank among those.

    ranks [ROWS, CAPACITY], −1 where there is no candidate. The lowest rank is put together bit by bit: the largest
    number r with |{ranks ≥ r}| ≥ wanted. It is 0 where there are fewer candidates, and all are chosen.
    """
    lowest = tl.zeros(wanted.shape, tl.int32)
    # lowest = max{r : |{ranks ≥ r}| ≥ wanted}, from the highest bit to the lowest
    for step in range(31):
        higher = lowest | (1 << (30 - step))
        reach = tl.sum((ranks >= higher[:, None]).to(tl.int32), axis=1)
        lowest = tl.where(reach >= wanted, higher, lowest)
    # all above it, and of those that tie with it the first ones in the buffer, which are the later keys
    above = ranks > lowest[:, None]
    tie = ranks == lowest[:, None]
    ties_wanted = wanted - tl.sum(above.to(tl.int32), axis=1)
    return above | (tie & (tl.cumsum(tie.to(tl.int32), axis=1) <= ties_wanted[:, None])), lowest


@triton.jit
def _candidates(buffer, scratch, row, CAPACITY: tl.constexpr):
    """Cells [ROWS, CAPACITY] of the buffers of these rows, and their ranks, −1 in empty ones."""
    column = tl.arange(0, CAPACITY)
    cell = buffer + row[:, None] * (2 * CAPACITY) + column[None]
    filled = column[None] < tl.load(scratch + row)[:, None]
    return cell, tl.load(cell, mask=filled, other=-1)


@triton.jit
def prune(buffer, scratch, held, K_MAX, BQ: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr):
    """Leave the best K_MAX in every buffer: how many are left, and the rank that later ones have to beat, [BQ] each."""
    line = tl.arange(0, BQ)
    tl.store(scratch + line, held)
    tl.debug_barrier()
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _candidates(buffer, scratch, row, CAPACITY)
        # S = the best K_MAX candidates, moved to the front in their order
        chosen, lowest = _top_candidates(ranks, tl.full((ROWS,), 0, tl.int32) + K_MAX)
        places = tl.load(cell + CAPACITY, mask=chosen, other=0)
        many = tl.sum(chosen.to(tl.int32), axis=1)
        target = buffer + row[:, None] * (2 * CAPACITY) + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
        tl.debug_barrier()  # all have read before any writes
        tl.store(target, ranks, mask=chosen)
        tl.store(target + CAPACITY, places, mask=chosen)
        tl.store(scratch + row, many)
        # floor = the lowest rank of S, −1 while there are fewer than K_MAX
        tl.store(scratch + BQ + row, tl.where(many < K_MAX, -1, lowest))
    tl.debug_barrier()
    return tl.load(scratch + line), tl.load(scratch + BQ + line)


@triton.jit
def write_best(
    buffer, scratch, held, wanted, out, exists, first, K_MAX,
    BQ: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the positions of the best `wanted` plus `first` to out [BQ, K_MAX], in the buffer's order, then −1."""
    line = tl.arange(0, BQ)
    tl.store(scratch + line, held)
    tl.store(scratch + BQ + line, tl.where(exists, wanted, 0))
    tl.debug_barrier()
    column = tl.arange(0, CAPACITY)[None]
    for start in range(0, BQ, ROWS):
        row = start + tl.arange(0, ROWS)
        cell, ranks = _candidates(buffer, scratch, row, CAPACITY)
        fewest = tl.load(scratch + BQ + row)
        # S_t = the best `wanted` candidates, from the latest to the earliest
        chosen, _lowest = _top_candidates(ranks, fewest)
        places = tl.load(cell + CAPACITY, mask=chosen, other=0)
        target = out + row.to(tl.int64)[:, None] * K_MAX
        many = tl.sum(chosen.to(tl.int32), axis=1)
        tl.store(
            target + tl.cumsum(chosen.to(tl.int32), axis=1) - 1, (first + places).to(tl.int32), mask=chosen
        )
        # −1 after them
        unused = (column >= many[:, None]) & (column < K_MAX) & (fewest > 0)[:, None]
        tl.store(target + column, tl.full((ROWS, CAPACITY), -1, tl.int32), mask=unused)
    tl.debug_barrier()  # the next queries write to the same buffers
