"""A bitonic network that sorts the rows of a tile: what remains of top-k once it is known which keys are in."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _exchange(x, SIZE: tl.constexpr, DISTANCE: tl.constexpr, LAST: tl.constexpr):
    """Put in order the pairs of x [N] that are DISTANCE apart; runs of SIZE fall and rise by turns, or all fall."""
    outer: tl.constexpr = x.shape[0] // (2 * DISTANCE)
    pairs = tl.reshape(x, (outer, 2, DISTANCE))
    partner = tl.sum(pairs, axis=1, keep_dims=True) - pairs  # a sum beyond 64 bits wraps, and back again
    run = tl.arange(0, outer) * (2 * DISTANCE) // SIZE
    falls = (run % 2 == 0) | LAST
    wants_larger = falls[:, None, None] == (tl.arange(0, 2) == 0)[None, :, None]
    best = tl.where(wants_larger, tl.maximum(pairs, partner), tl.minimum(pairs, partner))
    return tl.reshape(best, (x.shape[0],))


@triton.jit
def sort_entries(entries, indices, ROWS, K_MAX, BR: tl.constexpr, LOG: tl.constexpr):
    """Positions [ROWS, K_MAX] by falling rank, at equal ranks the later first; −1 where nothing was written.

    entries [ROWS, K_MAX] are rank·2^32 + position, or −1; a program sorts BR rows of 2^LOG.
    """
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, 1 << LOG)
    mask = (row < ROWS)[:, None] & (column < K_MAX)[None]
    place = row[:, None] * K_MAX + column[None]
    x = tl.reshape(tl.load(entries + place, mask=mask, other=-1), (BR << LOG,))
    for stage in tl.static_range(1, LOG + 1):
        for step in tl.static_range(stage):
            x = _exchange(x, 1 << stage, 1 << (stage - 1 - step), stage == LOG)
    entry = tl.reshape(x, (BR, 1 << LOG))
    tl.store(indices + place, tl.where(entry < 0, -1, entry & 4294967295).to(tl.int32), mask=mask)
