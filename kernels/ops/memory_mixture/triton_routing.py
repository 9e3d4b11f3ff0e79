"""Rows to the memories' segments and back: gathering, mixing, and the gradients of both.

All heads of a token or of one of its memories lie together, a row of H·K or H·V numbers. A visit is one (token, route)
pair; its place is where it stands on the axis that visits.py sorts. Every sum is over a token's own visits, so that no
row is written twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.memory_mixture.visits import Visits
from kernels.triton_common.gradients import first_order
from kernels.triton_common.tuning import Tuned


@dataclass(frozen=True)
class Routing:
    """Whole numbers alone.

    visits    the sorted axis
    place     int32 [B·T·M], of the visit of every (token, memory); −1: there is none
    """

    visits: Visits
    place: Tensor

    @staticmethod
    def of(visits: Visits, entries: int) -> Routing:
        place = torch.full((entries,), -1, dtype=torch.int32, device=visits.entry.device)
        number = torch.arange(len(visits.entry), dtype=torch.int32, device=visits.entry.device)
        return Routing(visits, place.scatter(0, visits.entry, number))


@triton.jit
def _move(source, to, taken, row, known, column, WIDTH):
    """to [row] = source [taken], rows of WIDTH numbers; 0 where `taken` is negative."""
    wide = known[:, None] & (column < WIDTH)[None]
    tile = tl.load(
        source + taken[:, None] * WIDTH + column[None], mask=wide & (taken >= 0)[:, None], other=0.0
    )
    tl.store(to + row[:, None] * WIDTH + column[None], tile.to(to.dtype.element_ty), mask=wide)


@triton.jit
def _gather(
    q, k, v, g, beta, to_q, to_k, to_v, to_g, to_beta, token, entry, VISITS, QW, VW, H,
    BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Inputs on the sorted axis: q by token, the others by token and memory."""
    row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    known = row < VISITS
    _move(q, to_q, tl.load(token + row, mask=known, other=0), row, known, column, QW)
    taken = tl.load(entry + row, mask=known, other=0)
    _move(k, to_k, taken, row, known, column, QW)
    _move(v, to_v, taken, row, known, column, VW)
    _move(g, to_g, taken, row, known, column, H)
    _move(beta, to_beta, taken, row, known, column, H)


@triton.jit
def _scatter(
    k, v, g, beta, to_k, to_v, to_g, to_beta, place, ENTRIES, QW, VW, H, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """Gradients [B·T·M, ...] from those on the sorted axis; 0 for memories that a token passes by."""
    row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    known = row < ENTRIES
    taken = tl.load(place + row, mask=known, other=-1).to(tl.int64)
    _move(k, to_k, taken, row, known, column, QW)
    _move(v, to_v, taken, row, known, column, VW)
    _move(g, to_g, taken, row, known, column, H)
    _move(beta, to_beta, taken, row, known, column, H)


@triton.jit
def _mix(x, weights, places, out, TOKENS, WIDTH, SLOTS: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """out [TOKENS, WIDTH] = Σ over a token's visits of x at their places, weighted if there are weights."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    mask = (token < TOKENS)[:, None] & (column < WIDTH)[None]
    total = tl.zeros((BT, BD), tl.float32)
    for slot in tl.static_range(SLOTS):
        place = tl.load(places + token * SLOTS + slot, mask=token < TOKENS, other=0)
        row = tl.load(x + place[:, None] * WIDTH + column[None], mask=mask, other=0.0).to(tl.float32)
        if weights is not None:
            weight = tl.load(weights + token * SLOTS + slot, mask=token < TOKENS, other=0.0)
            row *= weight.to(tl.float32)[:, None]
        total += row
    tl.store(out + token[:, None] * WIDTH + column[None], total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _mix_back(
    x, weights, places, d_out, d_x, d_weights, TOKENS, WIDTH,
    SLOTS: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """d_x on the sorted axis, d_weights [TOKENS, SLOTS]."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    known = token < TOKENS
    for slot in tl.static_range(SLOTS):
        place = tl.load(places + token * SLOTS + slot, mask=known, other=0)
        weight = tl.load(weights + token * SLOTS + slot, mask=known, other=0.0).to(tl.float32)
        total = tl.zeros((BT,), tl.float32)
        for start in range(0, WIDTH, BD):
            column = start + tl.arange(0, BD)
            mask = known[:, None] & (column < WIDTH)[None]
            at = place[:, None] * WIDTH + column[None]
            gradient = tl.load(d_out + token[:, None] * WIDTH + column[None], mask=mask, other=0.0)
            gradient = gradient.to(tl.float32)
            total += tl.sum(gradient * tl.load(x + at, mask=mask, other=0.0).to(tl.float32), axis=1)
            tl.store(d_x + at, (gradient * weight[:, None]).to(d_x.dtype.element_ty), mask=mask)
        total = total.to(d_weights.dtype.element_ty)
        tl.store(d_weights + token * SLOTS + slot, total, mask=known)


_TILES = [
    triton.Config({"BT": height, "BD": width}, num_warps=4)
    for height, width in ((64, 64), (16, 256), (32, 128), (8, 512))
]
_gather_tuned = Tuned(_gather, _TILES, ["QW", "VW"])
_scatter_tuned = Tuned(_scatter, _TILES, ["QW", "VW"])
_mix_tuned = Tuned(_mix, _TILES, ["WIDTH", "SLOTS"])
_mix_back_tuned = Tuned(_mix_back, _TILES, ["WIDTH", "SLOTS"])


def _grid(rows: int, width: int):
    return lambda meta: (triton.cdiv(rows, meta["BT"]), triton.cdiv(width, meta["BD"]))


class Gather(torch.autograd.Function):
    """q [B, T, H, K], k, v, g, beta [B, T, M, H, ...] -> the same of all visits, [1, P, H, ...]."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, routing: Routing):
        given = [x.contiguous() for x in (q, k, v, g, beta)]
        visits, heads = len(routing.visits.entry), beta.shape[3]
        sorted_ = [x.new_empty(1, visits, heads, *x.shape[4:]) for x in given[1:]]
        sorted_ = [q.new_empty(1, visits, *q.shape[2:]), *sorted_]
        q_width, v_width = heads * q.shape[3], heads * v.shape[4]
        _gather_tuned[_grid(visits, max(q_width, v_width))](
            *given, *sorted_, routing.visits.token, routing.visits.entry, visits, q_width, v_width, heads
        )
        ctx.routing, ctx.shapes = routing, [x.shape for x in given]
        return tuple(sorted_)

    @staticmethod
    @first_order
    def backward(ctx, *gradients):
        d_q, *given = (x.contiguous() for x in gradients)
        q_shape, *shapes = ctx.shapes
        outs = [x.new_empty(shape) for x, shape in zip(given, shapes, strict=True)]
        entries, heads = len(ctx.routing.place), q_shape[2]
        q_width, v_width = heads * q_shape[3], heads * shapes[1][4]
        _scatter_tuned[_grid(entries, max(q_width, v_width))](
            *given, *outs, ctx.routing.place, entries, q_width, v_width, heads
        )
        return mix(d_q, None, ctx.routing.visits.places, q_shape), *outs, None


class Mix(torch.autograd.Function):
    """Answers of all visits x [1, P, H, V], weights [B, T, R] -> o [B, T, H, V]."""

    @staticmethod
    def forward(ctx, x, weights, places):
        x, weights = x.contiguous(), weights.contiguous()
        ctx.save_for_backward(x, weights, places)
        return mix(x, weights, places, (*weights.shape[:2], *x.shape[2:]))

    @staticmethod
    @first_order
    def backward(ctx, d_out):
        x, weights, places = ctx.saved_tensors
        d_out, d_x, d_weights = d_out.contiguous(), torch.empty_like(x), torch.empty_like(weights)
        batch, time, slots = weights.shape
        _mix_back_tuned[lambda meta: (triton.cdiv(batch * time, meta["BT"]),)](
            x, weights, places, d_out, d_x, d_weights, batch * time, x.shape[2] * x.shape[3], SLOTS=slots
        )
        return d_x, d_weights, None


def mix(x: Tensor, weights: Tensor | None, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum of x [1, P, H, D] over the visits of a token, [B, T, H, D] = shape."""
    out = x.new_empty(shape)
    tokens, width = shape[0] * shape[1], shape[2] * shape[3]
    _mix_tuned[_grid(tokens, width)](x, weights, places, out, tokens, width, SLOTS=len(places) // tokens)
    return out
