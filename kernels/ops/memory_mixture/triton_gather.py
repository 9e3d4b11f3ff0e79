"""Inputs gathered into the memories' segments, and their gradients scattered back.

All heads of a token or of one of its memories lie together, a row of H·K or H·V numbers. A visit is one (token, route)
pair; its place is its index on the axis that visits.py sorts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.memory_mixture.triton_mix import ROW_TILES, mix, row_grid
from kernels.ops.memory_mixture.visits import Visits
from kernels.triton_common.tuning import Tuned


@dataclass(frozen=True)
class Routing:
    """The places of a call's visits, as integers.

    visits  the sorted axis
    place   int32 [B·T·M], the place of every (token, memory)'s visit; −1: there is none
    """

    visits: Visits
    place: Tensor

    @staticmethod
    def of(visits: Visits, entries: int) -> Routing:
        """Invert `visits.entry` over so many (token, memory) pairs."""
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
    """The inputs on the sorted axis: q by token, the others by token and memory.

    inputs     q [B·T, QW]; k, v, g, beta [B·T·M, QW, VW or H]
    outputs    to_q, to_k, to_v, to_g, to_beta [VISITS, likewise]
    indices    token, entry [VISITS]
    sizes      VISITS; QW = H·K, VW = H·V; H heads
    constants  BT, BD sides of a tile
    """
    row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    known = row < VISITS
    # q'_p = q of the token of visit p
    _move(q, to_q, tl.load(token + row, mask=known, other=0), row, known, column, QW)
    # k'_p, v'_p, g'_p, β'_p = those of its token and memory
    taken = tl.load(entry + row, mask=known, other=0)
    _move(k, to_k, taken, row, known, column, QW)
    _move(v, to_v, taken, row, known, column, VW)
    _move(g, to_g, taken, row, known, column, H)
    _move(beta, to_beta, taken, row, known, column, H)


@triton.jit
def _scatter(
    k, v, g, beta, to_k, to_v, to_g, to_beta, place, ENTRIES, QW, VW, H, BT: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """The gradients of k, v, g and beta [B·T·M, ...] from those on the sorted axis [visits, ...].

    0 for memories that a token does not name. place [ENTRIES]; the other arguments as in `_gather`.
    """
    row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    known = row < ENTRIES
    # dk_tm = dk' of the visit of token t to memory m, if there is one; likewise dv, dg, dβ
    taken = tl.load(place + row, mask=known, other=-1).to(tl.int64)
    _move(k, to_k, taken, row, known, column, QW)
    _move(v, to_v, taken, row, known, column, VW)
    _move(g, to_g, taken, row, known, column, H)
    _move(beta, to_beta, taken, row, known, column, H)


_gather_tuned = Tuned(_gather, ROW_TILES, ["QW", "VW"])
_scatter_tuned = Tuned(_scatter, ROW_TILES, ["QW", "VW"])


class Gather(torch.autograd.Function):
    """q [B, T, H, K], k, v, g, beta [B, T, M, H, ...] -> the same of all P visits, [1, P, H, ...]."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, routing: Routing):
        """Gather the inputs of all visits."""
        given = [x.contiguous() for x in (q, k, v, g, beta)]
        visits, heads = len(routing.visits.entry), beta.shape[3]
        sorted_ = [x.new_empty(1, visits, heads, *x.shape[4:]) for x in given[1:]]
        sorted_ = [q.new_empty(1, visits, *q.shape[2:]), *sorted_]
        q_width, v_width = heads * q.shape[3], heads * v.shape[4]
        _gather_tuned[row_grid(visits, max(q_width, v_width))](
            *given, *sorted_, routing.visits.token, routing.visits.entry, visits, q_width, v_width, heads
        )
        ctx.routing, ctx.shapes = routing, [x.shape for x in given]
        return tuple(sorted_)

    @staticmethod
    @first_order
    def backward(ctx, *gradients):
        """Sum the gradient of q over a token's visits, and scatter those of k, v, g and beta."""
        d_q, *given = (x.contiguous() for x in gradients)
        q_shape, *shapes = ctx.shapes
        outs = [x.new_empty(shape) for x, shape in zip(given, shapes, strict=True)]
        entries, heads = len(ctx.routing.place), q_shape[2]
        q_width, v_width = heads * q_shape[3], heads * shapes[1][4]
        _scatter_tuned[row_grid(entries, max(q_width, v_width))](
            *given, *outs, ctx.routing.place, entries, q_width, v_width, heads
        )
        return mix(d_q, None, ctx.routing.visits.places, q_shape), *outs, None
