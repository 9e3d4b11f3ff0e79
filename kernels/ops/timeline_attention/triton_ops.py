"""Timeline attention with its routing in kernels: tokens are sorted, gathered and rotated, attended to, put back.

sort      a counting sort (`sort_timelines_triton`): the place of every token, and its position inside its timeline
gather    a program has BM places of the sorted axis, reads q, k and v of their tokens, rotates q and k by their
          positions and writes all three; angles are computed once for both (`gather`)
attend    over segments, by the best kernel that takes the call
put back  every token's output from its place, times its weight (`put_back`)
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.dispatch import only_sizes
from kernels.ops.attention import segment_attention
from kernels.ops.timeline_attention.torch_form import Timelines, attend_by_plugin
from kernels.plugins import flash, varlen
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned

# A stable counting sort of tokens by (sequence, head, timeline), in three kernels.
#
# A sequence's tokens of one head fill a stretch of the sorted axis whose bounds are known beforehand, so that every
# (sequence, head) is sorted by itself, by few timelines:
#
#     count   a program has SIZE tokens of a sequence and BH heads, and counts the tokens of each timeline
#     starts  a program has a sequence and a head: an exclusive sum over (timeline, chunk), which is where each chunk's
#             first token of each timeline goes, and where each timeline begins
#     place   as count, again: a token's place is its chunk's start plus the tokens before it there on its timeline
#
# Chunk c of sequence n has row ⌊begin_n/SIZE⌋ + n + c of the counts; the next sequence's first row is never less than
# the last of these plus one, so that rows need no table, only a search in cu_seqlens. Rows past a sequence's end
# count nothing. No addition is atomic. A timeline out of range is taken as the nearest: a wrong answer, but no wild
# address.

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


_SORT_TILES = [
    triton.Config({"BH": heads}, num_warps=warps)
    for heads, warps in ((16, 4), (8, 4), (4, 4), (16, 8), (1, 1))
]
_count_tuned = Tuned(_timeline_count, _SORT_TILES, ["HEADS", "TIMELINES"])
_place_tuned = Tuned(_timeline_place, _SORT_TILES, ["HEADS", "TIMELINES"])


@operator
def _sorted(assignment: Tensor, n_timelines: int, cu_seqlens: Tensor | None) -> tuple[Tensor, ...]:
    """The tensors of `sort_timelines_triton`."""
    timelines = sort_timelines_triton(assignment, n_timelines, cu_seqlens)
    return timelines.order, timelines.places, timelines.positions, timelines.cu_seqlens


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


# Rows of tokens to the sorted axis and back: gathering with RoPE, putting back, and their gradients.
#
# The gather's backward goes by tokens: a KV head's gradients, rotated back, are summed over the query heads that
# share it in the order of the heads, so that nothing is added atomically. Putting back goes by tokens both ways, and
# finds the weight's gradient on the way.
#
# Sizes: K, V widths of keys and values, BK, BV of tiles; GROUP query heads a KV head; BM rows of a program.


@triton.jit
def _angles(positions, frequencies, flat, known, WIDTH, BW: tl.constexpr):
    """cos and sin [BM, BW/2] of position · frequency."""
    pair = tl.arange(0, BW // 2)
    # θ_pi = p · base^(−2i/K)
    position = tl.load(positions + flat, mask=known, other=0).to(tl.float32)
    frequency = tl.load(frequencies + pair, mask=pair < WIDTH // 2, other=0.0)
    angle = position[:, None] * frequency[None]
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def _turned(rows, cos, sin):
    """Rows [BM, BW] in fp32 with each pair (x, y) of neighbours rotated: (x·cos − y·sin, x·sin + y·cos)."""
    pairs = tl.reshape(rows.to(tl.float32), (rows.shape[0], rows.shape[1] // 2, 2))
    even, odd = tl.split(pairs)
    return tl.interleave(even * cos - odd * sin, even * sin + odd * cos)


@triton.jit
def _timeline_gather(
    q, k, v, q_there, k_there, v_there, order, positions, frequencies, PLACES, K, V,
    GROUP: tl.constexpr, ROPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Copy q, k and v to the sorted axis, q and k rotated.

    in   q [B·T·H, K], k [B·T·Hkv, K], v [B·T·Hkv, V]; order [PLACES], positions [B·T·H], frequencies [K/2]
    out  q_there, k_there [PLACES, K], v_there [PLACES, V]; PLACES = B·T·H
    """
    place = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    known = place < PLACES
    flat = tl.load(order + place, mask=known, other=0)
    # q, k and v of the token and head that stands at each place; heads share KV row ⌊f/GROUP⌋
    queries = load_rows(q, flat, known, K, BK)
    keys = load_rows(k, flat // GROUP, known, K, BK)
    if ROPE:
        cos, sin = _angles(positions, frequencies, flat, known, K, BK)
        # RoPE by the position inside the timeline
        queries, keys = _turned(queries, cos, sin), _turned(keys, cos, sin)
    store_rows(q_there, place, known, queries, K, BK)
    store_rows(k_there, place, known, keys, K, BK)
    store_rows(v_there, place, known, load_rows(v, flat // GROUP, known, V, BV), V, BV)


@triton.jit
def _timeline_gather_backward(
    dq_there, dk_there, dv_there, dq, dk, dv, places, positions, frequencies, ROWS, K, V,
    GROUP: tl.constexpr, ROPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k, v from those on the sorted axis, by KV row and the query rows that share it.

    in   dq_there, dk_there [B·T·H, K], dv_there [B·T·H, V]; places [B·T·H], positions, frequencies
    out  dq [B·T·H, K], dk [ROWS, K], dv [ROWS, V]; ROWS = B·T·Hkv, GROUP = H/Hkv
    """
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    known = row < ROWS
    keys, values = tl.zeros((BM, BK), tl.float32), tl.zeros((BM, BV), tl.float32)
    for member in range(GROUP):
        flat = row * GROUP + member
        place = tl.load(places + flat, mask=known, other=0)
        # the gradient of a rotation is the rotation back
        query = load_rows(dq_there, place, known, K, BK).to(tl.float32)
        key = load_rows(dk_there, place, known, K, BK).to(tl.float32)
        if ROPE:
            cos, sin = _angles(positions, frequencies, flat, known, K, BK)
            query, key = _turned(query, cos, -sin), _turned(key, cos, -sin)
        store_rows(dq, flat, known, query, K, BK)
        # dk and dv are sums over the query heads that share a KV head, in the heads' order
        keys += key
        values += load_rows(dv_there, place, known, V, BV)
    store_rows(dk, row, known, keys, K, BK)
    store_rows(dv, row, known, values, V, BV)


@triton.jit
def _timeline_put_back(there, weight, o, places, ROWS, V, BV: tl.constexpr, BM: tl.constexpr):
    """o [ROWS, V] of every token and head from the sorted axis: o_i = w_i · there[place of i]."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    known = row < ROWS
    # o_i = w_i · there[place of i]
    values = load_rows(there, tl.load(places + row, mask=known, other=0), known, V, BV)
    if weight is not None:
        values = values.to(tl.float32) * tl.load(weight + row, mask=known, other=0.0).to(tl.float32)[:, None]
    store_rows(o, row, known, values, V, BV)


@triton.jit
def _timeline_put_back_backward(
    do, there, weight, dthere, dweight, places, ROWS, V, BV: tl.constexpr, BM: tl.constexpr
):
    """Gradients of `_timeline_put_back`: dthere [ROWS, V] on the sorted axis and dweight [ROWS]."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    known = row < ROWS
    place = tl.load(places + row, mask=known, other=0)
    gradient = load_rows(do, row, known, V, BV).to(tl.float32)
    if weight is not None:
        values = load_rows(there, place, known, V, BV).to(tl.float32)
        # dw_i = do_i · there[place of i]
        by_weight = tl.sum(gradient * values, axis=1)
        tl.store(dweight + row, by_weight.to(dweight.dtype.element_ty), mask=known)
        # dthere[place of i] = w_i · do_i
        gradient *= tl.load(weight + row, mask=known, other=0.0).to(tl.float32)[:, None]
    store_rows(dthere, place, known, gradient, V, BV)


_TILES = [triton.Config({"BM": rows}, num_warps=warps) for rows, warps in ((32, 4), (16, 4), (64, 4), (8, 1))]
_gather_tuned = Tuned(_timeline_gather, _TILES, ["K", "V", "GROUP", "ROPE"])
_gather_backward_tuned = Tuned(_timeline_gather_backward, _TILES, ["K", "V", "GROUP", "ROPE"])
_put_back_tuned = Tuned(_timeline_put_back, _TILES, ["V"])
_put_back_backward_tuned = Tuned(_timeline_put_back_backward, _TILES, ["V"])


@operator
class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, places, positions, base):
        q, k, v = (x.contiguous() for x in (q, k, v))
        rows = len(order)
        there = [x.new_empty(rows, 1, x.shape[-1]) for x in (q, k, v)]
        turn = (positions, _frequencies(q, base))
        ctx.shapes, ctx.sizes, ctx.base = [list(x.shape) for x in (q, k, v)], _sizes(q, k, v, base), base
        ctx.save_for_backward(places, positions)
        _gather_tuned[lambda meta: (triton.cdiv(rows, meta["BM"]),)](
            q, k, v, *there, order, *turn, rows, **ctx.sizes
        )
        return tuple(there)

    @staticmethod
    @first_order
    def backward(ctx, *there):
        there, (places, positions) = [x.contiguous() for x in there], ctx.saved_tensors
        turn = (positions, _frequencies(there[0], ctx.base))
        gradients = [x.new_empty(shape) for x, shape in zip(there, ctx.shapes, strict=True)]
        rows = len(places) // ctx.sizes["GROUP"]
        _gather_backward_tuned[lambda meta: (triton.cdiv(rows, meta["BM"]),)](
            *there, *gradients, places, *turn, rows, **ctx.sizes
        )
        return *gradients, None, None, None, None


@operator
class _PutBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, there, weight, places, *shape):
        there, weight = there.contiguous(), None if weight is None else weight.contiguous()
        o = there.new_empty(*shape, there.shape[-1])
        ctx.save_for_backward(places, *((None, None) if weight is None else (there, weight)))
        ctx.shape = list(there.shape)
        _launch(_put_back_tuned, there, weight, o, places)
        return o

    @staticmethod
    @first_order
    def backward(ctx, do):
        places, there, weight = ctx.saved_tensors
        dthere, dweight = do.new_empty(ctx.shape), None if weight is None else torch.empty_like(weight)
        _launch(_put_back_backward_tuned, do.contiguous(), there, weight, dthere, dweight, places)
        return dthere, dweight, None, None, None, None


def _launch(tuned: Tuned, *tensors: Tensor | None) -> None:
    """Launch a kernel of putting back: its values come first, the places last."""
    rows, width = len(tensors[-1]), tensors[0].shape[-1]
    tuned[lambda meta: (triton.cdiv(rows, meta["BM"]),)](
        *tensors, rows, width, BV=triton.next_power_of_2(width)
    )


def _sizes(q: Tensor, k: Tensor, v: Tensor, base: float | None) -> dict[str, int | bool]:
    widths = {"K": q.shape[-1], "V": v.shape[-1]}
    tiles = {f"B{name}": triton.next_power_of_2(width) for name, width in widths.items()}
    return {**widths, **tiles, "GROUP": q.shape[2] // k.shape[2], "ROPE": base is not None}


def _frequencies(q: Tensor, base: float | None) -> Tensor | None:
    """The angle a position of each pair i of q [..., K], base^(−2i/K), each rounded once; None without a base."""
    if base is None:
        return None
    if only_sizes(q):  # a cache may keep none of these
        return q.new_empty(q.shape[-1] // 2, dtype=torch.float32)
    return _computed_frequencies(q.shape[-1], base, q.device)


@functools.lru_cache(maxsize=64)
def _computed_frequencies(width: int, base: float, device: torch.device) -> Tensor:
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], device=device)


def gather(
    q: Tensor, k: Tensor, v: Tensor, timelines: Timelines, base: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gather q, k, v [B, T, ·, D] to the sorted axis, [M, 1, D]; q and k rotated if there is a base."""
    axis = timelines.order, timelines.places, timelines.positions
    return _Gather(q, k, v, *axis, base, returns=(True,) * 3)


def put_back(
    there: Tensor, timelines: Timelines, shape: tuple[int, int, int], weight: Tensor | None = None
) -> Tensor:
    """Put rows [M, 1, D] of the sorted axis back to [B, T, H, D] = shape, times the weight [B, T, H]."""
    return _PutBack(there, weight, timelines.places, *shape)


# The backend.


def timeline_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None,
    weight: Tensor | None,
    scale: float | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Compute `kernels.timeline_attention` on a GPU; routing reads and writes q, k, v and o once each way.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    timelines = Timelines(*_sorted(assignment, n_timelines, cu_seqlens, returns=(True,) * 4))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = _attend(*gather(q, k, v, timelines, rope_base), timelines.cu_seqlens, scale, q.shape[1])
    return put_back(out, timelines, tuple(q.shape[:3]), weight)


def _attend(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, scale: float, longest: int) -> Tensor:
    """Attention [M, 1, V] within timelines, by a fused kernel where one takes the call."""
    for plugin in (varlen, flash):
        if plugin.refuses(q, k, v) is None:
            return attend_by_plugin(plugin, longest, q, k, v, cu, scale)
    return segment_attention(q, k, v, cu, scale=scale)
