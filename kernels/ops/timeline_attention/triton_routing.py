"""Rows of tokens to the sorted axis of timelines and back: gathering with RoPE, putting back, and their gradients.

The gather's backward goes by tokens: a KV head's gradients, rotated back, are summed over the query heads that share
it in the order of the heads, so that nothing is added atomically. Putting back goes by tokens both ways, and finds the
weight's gradient on the way.

Sizes: K, V widths of keys and values, BK, BV of tiles; GROUP query heads a KV head; BM rows of a program.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.timeline_attention.sort import Timelines
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


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
        found = tl.sum(gradient * values, axis=1)
        tl.store(dweight + row, found.to(dweight.dtype.element_ty), mask=known)
        # dthere[place of i] = w_i · do_i
        gradient *= tl.load(weight + row, mask=known, other=0.0).to(tl.float32)[:, None]
    store_rows(dthere, place, known, gradient, V, BV)


_TILES = [triton.Config({"BM": rows}, num_warps=warps) for rows, warps in ((32, 4), (16, 4), (64, 4), (8, 1))]
_gather_tuned = Tuned(_timeline_gather, _TILES, ["K", "V", "GROUP", "ROPE"])
_gather_backward_tuned = Tuned(_timeline_gather_backward, _TILES, ["K", "V", "GROUP", "ROPE"])
_put_back_tuned = Tuned(_timeline_put_back, _TILES, ["V"])
_put_back_backward_tuned = Tuned(_timeline_put_back_backward, _TILES, ["V"])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, timelines, base):
        q, k, v = (x.contiguous() for x in (q, k, v))
        places = len(timelines.order)
        there = [x.new_empty(places, 1, x.shape[-1]) for x in (q, k, v)]
        ctx.turn = (timelines.positions, _frequencies(q.shape[-1], base, q.device))
        ctx.places, ctx.shapes, ctx.sizes = (
            timelines.places,
            [x.shape for x in (q, k, v)],
            _sizes(q, k, v, base),
        )
        _gather_tuned[lambda meta: (triton.cdiv(places, meta["BM"]),)](
            q, k, v, *there, timelines.order, *ctx.turn, places, **ctx.sizes
        )
        return tuple(there)

    @staticmethod
    @first_order
    def backward(ctx, *there):
        there = [x.contiguous() for x in there]
        found = [x.new_empty(shape) for x, shape in zip(there, ctx.shapes, strict=True)]
        rows = len(ctx.places) // ctx.sizes["GROUP"]
        _gather_backward_tuned[lambda meta: (triton.cdiv(rows, meta["BM"]),)](
            *there, *found, ctx.places, *ctx.turn, rows, **ctx.sizes
        )
        return *found, None, None


class _PutBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, there, weight, timelines, shape):
        there, weight = there.contiguous(), None if weight is None else weight.contiguous()
        o = there.new_empty(*shape, there.shape[-1])
        ctx.save_for_backward(*(() if weight is None else (there, weight)))
        ctx.places, ctx.shape = timelines.places, there.shape
        _launch(_put_back_tuned, there, weight, o, ctx.places)
        return o

    @staticmethod
    @first_order
    def backward(ctx, do):
        there, weight = ctx.saved_tensors or (None, None)
        dthere, dweight = do.new_empty(ctx.shape), None if weight is None else torch.empty_like(weight)
        _launch(_put_back_backward_tuned, do.contiguous(), there, weight, dthere, dweight, ctx.places)
        return dthere, dweight, None, None


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


@functools.lru_cache(maxsize=64)
def _frequencies(width: int, base: float | None, device: torch.device) -> Tensor | None:
    """The angle a position of each pair i, base^(−2i/width), each rounded once; None without a base."""
    if base is None:
        return None
    return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], device=device)


def gather(
    q: Tensor, k: Tensor, v: Tensor, timelines: Timelines, base: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gather q, k, v [B, T, ·, D] to the sorted axis, [M, 1, D]; q and k rotated if there is a base."""
    return _Gather.apply(q, k, v, timelines, base)


def put_back(
    there: Tensor, timelines: Timelines, shape: tuple[int, int, int], weight: Tensor | None = None
) -> Tensor:
    """Put rows [M, 1, D] of the sorted axis back to [B, T, H, D] = shape, times the weight [B, T, H]."""
    return _PutBack.apply(there, weight, timelines, shape)
