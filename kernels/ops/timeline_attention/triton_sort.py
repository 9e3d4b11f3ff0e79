"""A stable counting sort of tokens by (sequence, head, timeline), in three kernels.

A sequence's tokens of one head fill a stretch of the sorted axis whose bounds are known beforehand, so that every
(sequence, head) is sorted by itself, by few timelines:

    count   a program has SIZE tokens of a sequence and BH heads, and counts the tokens of each timeline
    starts  a program has a sequence and a head: an exclusive sum over (timeline, chunk), which is where each chunk's
            first token of each timeline goes, and where each timeline begins
    place   as count, again: a token's place is its chunk's start plus the tokens before it there on its timeline

Chunk c of sequence n has row ⌊begin_n/SIZE⌋ + n + c of the counts; the next sequence's first row is never less than
the last of these plus one, so that rows need no table, only a search in cu_seqlens. Rows past a sequence's end count
nothing. No addition is atomic. A timeline out of range is taken as the nearest: a wrong answer, but no wild address.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.timeline_attention.sort import Timelines
from kernels.triton_common.tuning import Tuned

_SIZE = 128


@triton.jit
def _begin(cu, sequence, time):
    """The first token of a sequence on the axis of B·T tokens; of the one after the last, the axis' end."""
    if cu is None:  # noqa: SIM108 (one branch is not compiled)
        begin = sequence * time
    else:
        begin = tl.load(cu + sequence).to(tl.int64)
    return begin


@triton.jit
def _sequence_of(row, cu, time, SEQUENCES, HALVINGS, SIZE: tl.constexpr):
    """The last sequence whose first row is not after this one."""
    low, high = row * 0, row * 0 + SEQUENCES - 1
    for _ in range(HALVINGS):
        middle = (low + high + 1) // 2
        fits = _begin(cu, middle, time) // SIZE + middle <= row
        low, high = tl.where(fits, middle, low), tl.where(fits, high, middle - 1)
    return low


@triton.jit
def _tile(
    assignment, cu, time, SEQUENCES, HALVINGS, BATCH_STRIDE, TIME_STRIDE, HEAD_STRIDE,
    HEADS, TIMELINES, SIZE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """The program's row, sequence, tokens [SIZE], heads [BH], and their timelines [SIZE, BH], −1 if unused."""
    row = tl.program_id(0).to(tl.int64)
    sequence = _sequence_of(row, cu, time, SEQUENCES, HALVINGS, SIZE)
    begin, end = _begin(cu, sequence, time), _begin(cu, sequence + 1, time)
    token = begin + (row - begin // SIZE - sequence) * SIZE + tl.arange(0, SIZE)
    head = tl.program_id(1).to(tl.int64) * BH + tl.arange(0, BH)
    used = (token < end)[:, None] & (head < HEADS)[None]
    place = assignment + token[:, None] * TIME_STRIDE + head[None] * HEAD_STRIDE
    if cu is None:
        place += sequence * (BATCH_STRIDE - time * TIME_STRIDE)
    timeline = tl.load(place, mask=used, other=0).to(tl.int64)
    timeline = tl.minimum(tl.maximum(timeline, 0), TIMELINES - 1)
    return row, sequence, token, head, tl.where(used, timeline, -1)


@triton.jit
def _timeline_count(
    assignment, cu, counts, time, SEQUENCES, HALVINGS, BATCH_STRIDE, TIME_STRIDE, HEAD_STRIDE, ROWS,
    HEADS, TIMELINES, SIZE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Count the tokens of each row on each timeline: counts [HEADS, TIMELINES, ROWS]."""
    row, _, _, head, timeline = _tile(
        assignment, cu, time, SEQUENCES, HALVINGS, BATCH_STRIDE, TIME_STRIDE, HEAD_STRIDE,
        HEADS, TIMELINES, SIZE, BH,
    )  # fmt: skip
    for there in range(TIMELINES):
        # counts_{h, m, row} = |{tokens of the row that head h puts on timeline m}|
        count = tl.sum((timeline == there).to(tl.int32), axis=0)
        tl.store(counts + (head * TIMELINES + there) * ROWS + row, count, mask=head < HEADS)


@triton.jit
def _timeline_starts(
    counts, cu, chunk_starts, starts, time, SEQUENCES, ROWS, HEADS, TIMELINES, SIZE: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Sum the counts of the rows before.

    in   counts [HEADS, TIMELINES, ROWS]
    out  chunk_starts like counts: the place of a row's first token on a timeline; starts: of the timeline's first
    """
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    begin, end = _begin(cu, sequence, time), _begin(cu, sequence + 1, time)
    first = begin // SIZE + sequence
    rows = (tl.cdiv(end - begin, SIZE)).to(tl.int32)
    # the sequence's tokens of head h fill a stretch of the sorted axis, timeline after timeline
    place = begin * HEADS + head * (end - begin)
    segment = (sequence * HEADS + head) * TIMELINES
    for timeline in range(TIMELINES):
        tl.store(starts + segment + timeline, place.to(tl.int32))
        for at in range(0, rows, BC):
            row = at + tl.arange(0, BC)
            chunk = (head * TIMELINES + timeline) * ROWS + first + row
            # exclusive sums of counts over the sequence's rows
            count = tl.load(counts + chunk, mask=row < rows, other=0).to(tl.int64)
            tl.store(chunk_starts + chunk, place + tl.cumsum(count, axis=0) - count, mask=row < rows)
            place += tl.sum(count, axis=0)
    last = (sequence == SEQUENCES - 1) & (head == HEADS - 1)
    tl.store(starts + segment + TIMELINES, place.to(tl.int32), mask=last)


@triton.jit
def _timeline_place(
    assignment, cu, chunk_starts, starts, order, places, positions,
    time, SEQUENCES, HALVINGS, BATCH_STRIDE, TIME_STRIDE, HEAD_STRIDE, ROWS,
    HEADS, TIMELINES, SIZE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Write order, places and positions of `Timelines`, for SIZE tokens and BH heads.

    in         assignment, integer, with strides of batch, time and head; chunk_starts [HEADS, TIMELINES, ROWS] and
               starts [sequences·HEADS·TIMELINES + 1] of `_timeline_starts`
    out        order, places [B·T·HEADS], positions [B, T, HEADS], int64
    layout     cu [N+1] or None; time: tokens of a sequence where there is no cu; SEQUENCES; HALVINGS of the search for
               a row's sequence; ROWS of SIZE tokens in all
    sizes      HEADS, TIMELINES
    constants  SIZE tokens, BH heads of a tile
    """
    row, sequence, token, head, timeline = _tile(
        assignment, cu, time, SEQUENCES, HALVINGS, BATCH_STRIDE, TIME_STRIDE, HEAD_STRIDE,
        HEADS, TIMELINES, SIZE, BH,
    )  # fmt: skip
    place = tl.zeros((SIZE, BH), tl.int64)
    position = tl.zeros((SIZE, BH), tl.int64)
    known = head < HEADS
    for there in range(TIMELINES):
        here = timeline == there
        # tokens of the row before this one on the same timeline
        before = tl.cumsum(here.to(tl.int32), axis=0) - 1
        chunk = tl.load(chunk_starts + (head * TIMELINES + there) * ROWS + row, mask=known, other=0)
        start = tl.load(starts + (sequence * HEADS + head) * TIMELINES + there, mask=known, other=0)
        # place = the row's first place on the timeline + those before; position counts from the timeline's start
        place = tl.where(here, chunk[None] + before, place)
        position = tl.where(here, (chunk - start)[None] + before, position)
    # places[flat] = place, order[place] = flat
    flat = token[:, None] * HEADS + head[None]
    used = timeline >= 0
    tl.store(places + flat, place, mask=used)
    tl.store(positions + flat, position, mask=used)
    tl.store(order + place, flat, mask=used)


_TILES = [
    triton.Config({"BH": heads}, num_warps=warps)
    for heads, warps in ((16, 4), (8, 4), (4, 4), (16, 8), (1, 1))
]
_count_tuned = Tuned(_timeline_count, _TILES, ["HEADS", "TIMELINES"])
_place_tuned = Tuned(_timeline_place, _TILES, ["HEADS", "TIMELINES"])


def sort_timelines_triton(assignment: Tensor, n_timelines: int, cu_seqlens: Tensor | None) -> Timelines:
    """Compute `sort_timelines` by kernels alone: PyTorch allocates. The assignment may have any strides.

    assignment: integer [B, T, H] in [0, n_timelines); cu_seqlens [N+1] or None. `Timelines` gives the results' shapes.
    """
    batch, time, heads = assignment.shape
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    rows = batch * time // _SIZE + sequences
    device = assignment.device
    counts = torch.empty(heads, n_timelines, rows, dtype=torch.int32, device=device)
    chunk_starts = torch.empty(counts.shape, dtype=torch.int64, device=device)
    starts = torch.empty(sequences * heads * n_timelines + 1, dtype=torch.int32, device=device)
    order, places = (torch.empty(assignment.numel(), dtype=torch.int64, device=device) for _ in range(2))
    positions = torch.empty(batch, time, heads, dtype=torch.int64, device=device)
    sizes = {"ROWS": rows, "HEADS": heads, "TIMELINES": n_timelines, "SIZE": _SIZE}
    sizes |= {"time": time, "SEQUENCES": sequences}
    tiles = dict(zip(("BATCH_STRIDE", "TIME_STRIDE", "HEAD_STRIDE"), assignment.stride(), strict=True))
    tiles |= {"HALVINGS": sequences.bit_length(), **sizes}

    def grid(meta) -> tuple[int, int]:
        return rows, triton.cdiv(heads, meta["BH"])

    _count_tuned[grid](assignment, cu_seqlens, counts, **tiles)
    _timeline_starts[(sequences, heads)](counts, cu_seqlens, chunk_starts, starts, BC=256, **sizes)
    _place_tuned[grid](assignment, cu_seqlens, chunk_starts, starts, order, places, positions, **tiles)
    return Timelines(order, places, positions, starts)
