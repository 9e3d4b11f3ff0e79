"""The mixture of memories on a GPU: inputs are gathered, the delta rule runs over segments, outputs are mixed.

PyTorch sorts integers to find the place of every visit (`sort_visits`); floating-point numbers are moved and summed
in kernels. Saved: the gathered inputs, what the delta rule saves, and the memories' outputs. One token without
gradients, as in decoding, has a kernel of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.delta_rule.triton_forward import head_state
from kernels.ops.delta_rule.triton_ops import delta_rule_triton
from kernels.ops.delta_rule.triton_step import STEP_TILES, delta_step
from kernels.ops.memory_mixture.torch_form import Visits, sort_visits
from kernels.triton_common import padded
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_matrix, store_matrix
from kernels.triton_common.tuning import Tuned

# The sum over a token's visits to memories, and its gradients.
#
# Every sum is over a token's own visits, so that no row is written twice.


@triton.jit
def _mix(x, weights, places, out, TOKENS, WIDTH, SLOTS: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """out_t = Σ_r weights_tr·x_p(t,r), or the plain sum where there are no weights.

    inputs     x [visits, WIDTH]; weights [TOKENS, SLOTS] or None; places p [TOKENS, SLOTS]
    outputs    out [TOKENS, WIDTH]
    constants  SLOTS visits a token; BT, BD sides of a tile
    """
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    mask = (token < TOKENS)[:, None] & (column < WIDTH)[None]
    total = tl.zeros((BT, BD), tl.float32)
    for slot in tl.static_range(SLOTS):
        place = tl.load(places + token * SLOTS + slot, mask=token < TOKENS, other=0)
        row = tl.load(x + place[:, None] * WIDTH + column[None], mask=mask, other=0.0).to(tl.float32)
        # o_t = Σ_r weights_tr·x_p(t,r)
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
    """The gradients of `_mix`.

    inputs     x [visits, WIDTH]; weights, places p [TOKENS, SLOTS]; d_out [TOKENS, WIDTH]
    outputs    d_x [visits, WIDTH]; d_weights [TOKENS, SLOTS]
    constants  SLOTS visits a token; BT tokens a program; BD columns at a time
    """
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
            # d_weights_tr = Σ_d do_t·x_p(t,r)
            total += tl.sum(gradient * tl.load(x + at, mask=mask, other=0.0).to(tl.float32), axis=1)
            # dx_p(t,r) = weights_tr·do_t
            tl.store(d_x + at, (gradient * weight[:, None]).to(d_x.dtype.element_ty), mask=mask)
        total = total.to(d_weights.dtype.element_ty)
        tl.store(d_weights + token * SLOTS + slot, total, mask=known)


ROW_TILES = [
    triton.Config({"BT": height, "BD": width}, num_warps=4)
    for height, width in ((64, 64), (16, 256), (32, 128), (8, 512))
]
_mix_tuned = Tuned(_mix, ROW_TILES, ["WIDTH", "SLOTS"])
_mix_back_tuned = Tuned(_mix_back, ROW_TILES, ["WIDTH", "SLOTS"])


def row_grid(rows: int, width: int):
    """Return the grid of tiles over so many rows and columns, a function of the tile's sides BT and BD."""
    return lambda meta: (triton.cdiv(rows, meta["BT"]), triton.cdiv(width, meta["BD"]))


@operator
class Mix(torch.autograd.Function):
    """Outputs of all visits x [1, P, H, V], weights [B, T, R] -> o [B, T, H, V]."""

    @staticmethod
    def forward(ctx, x, weights, places):
        """Sum the weighted outputs of every token's visits."""
        x, weights = x.contiguous(), weights.contiguous()
        ctx.save_for_backward(x, weights, places)
        return mix(x, weights, places, (*weights.shape[:2], *x.shape[2:]))

    @staticmethod
    @first_order
    def backward(ctx, d_out):
        """Return the gradients of x and weights."""
        x, weights, places = ctx.saved_tensors
        d_out, d_x, d_weights = d_out.contiguous(), torch.empty_like(x), torch.empty_like(weights)
        batch, time, slots = weights.shape
        _mix_back_tuned[lambda meta: (triton.cdiv(batch * time, meta["BT"]),)](
            x, weights, places, d_out, d_x, d_weights, batch * time, x.shape[2] * x.shape[3], SLOTS=slots
        )
        return d_x, d_weights, None


def mix(x: Tensor, weights: Tensor | None, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum x [1, P, H, D] over the visits of every token, weighted if there are weights: [B, T, H, D] = shape."""
    out = x.new_empty(shape)
    tokens, width = shape[0] * shape[1], shape[2] * shape[3]
    _mix_tuned[row_grid(tokens, width)](x, weights, places, out, tokens, width, SLOTS=len(places) // tokens)
    return out


# Inputs gathered into the memories' segments, and their gradients scattered back.
#
# All heads of a token or of one of its memories lie together, a row of H·K or H·V numbers. A visit is one (token,
# route) pair; its place is its index on the axis that `sort_visits` sorts.


def inverse(visits: Visits, entries: int) -> Tensor:
    """The place of every (token, memory)'s visit, int32 [B·T·M] = [entries]; −1: there is none."""
    place = torch.full((entries,), -1, dtype=torch.int32, device=visits.entry.device)
    number = torch.arange(len(visits.entry), dtype=torch.int32, device=visits.entry.device)
    return place.scatter(0, visits.entry, number)


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


@operator
class Gather(torch.autograd.Function):
    """q [B, T, H, K], k, v, g, beta [B, T, M, H, ...] -> the same of all P visits, [1, P, H, ...]."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, token, entry, places, place):
        """Gather the inputs of all visits."""
        given = [x.contiguous() for x in (q, k, v, g, beta)]
        visits, heads = len(entry), beta.shape[3]
        sorted_ = [x.new_empty(1, visits, heads, *x.shape[4:]) for x in given[1:]]
        sorted_ = [q.new_empty(1, visits, *q.shape[2:]), *sorted_]
        q_width, v_width = heads * q.shape[3], heads * v.shape[4]
        _gather_tuned[row_grid(visits, max(q_width, v_width))](
            *given, *sorted_, token, entry, visits, q_width, v_width, heads
        )
        ctx.save_for_backward(places, place)
        ctx.shapes = [list(x.shape) for x in given]
        return tuple(sorted_)

    @staticmethod
    @first_order
    def backward(ctx, *gradients):
        """Sum the gradient of q over a token's visits, and scatter those of k, v, g and beta."""
        d_q, *given = (x.contiguous() for x in gradients)
        places, place = ctx.saved_tensors
        q_shape, *shapes = ctx.shapes
        outs = [x.new_empty(shape) for x, shape in zip(given, shapes, strict=True)]
        entries, heads = len(place), q_shape[2]
        q_width, v_width = heads * q_shape[3], heads * shapes[1][4]
        _scatter_tuned[row_grid(entries, max(q_width, v_width))](
            *given, *outs, place, entries, q_width, v_width, heads
        )
        return mix(d_q, None, places, q_shape), *outs, None, None, None, None


# One token of the mixture of memories for every sequence, as in decoding.
#
# A program goes through the memories of one head, BV columns of values at a time. A memory that the token does not
# name is copied, bit for bit.


@triton.jit
def _step(
    q, k, v, g, beta, routes, weights, initial, o, final, scale, H, M, SLOTS,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token of one sequence and head, BV columns of values.

    inputs     q [B, H, K]; k [B, M, H, K], v [B, M, H, V]; g, beta [B, M, H]; routes, weights [B, SLOTS];
               initial [B, M, H, K, V] or None
    outputs    o [B, H, V]; final [B, M, H, K, V] or None
    sizes      scale; H heads; M memories; SLOTS routes a token
    constants  K, V widths; BR ≥ SLOTS; BK ≥ K, BV sides of a state's tile
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    slot = tl.arange(0, BR)
    route = tl.load(routes + row * SLOTS + slot, mask=slot < SLOTS, other=-1)
    weight = tl.load(weights + row * SLOTS + slot, mask=slot < SLOTS, other=0.0).to(tl.float32)
    queries = tl.load(q + (row * H + head) * K + key, mask=key < K, other=0.0).to(tl.float32)
    mixed = tl.zeros((BV,), tl.float32)
    for memory in range(M):
        entry = row * M + memory
        state = tl.zeros((BK, BV), tl.float32)
        if initial is not None:
            state += load_matrix(head_state(initial, entry, head, H, K, V), key, value, K, V).to(tl.float32)
        if tl.sum((route == memory).to(tl.int32), axis=0) > 0:
            at = entry * H + head
            keys = tl.load(k + at * K + key, mask=key < K, other=0.0).to(tl.float32)
            values = tl.load(v + at * V + value, mask=value < V, other=0.0).to(tl.float32)
            decay = tl.exp(tl.load(g + at + tl.arange(0, 1)).to(tl.float32))
            strength = tl.load(beta + at).to(tl.float32)
            # S_m ← exp(g_m)·(I − β_m·k_m·k_mᵀ)·S_m + β_m·k_m·v_mᵀ    for the memories m in routes_t; others stay
            state, out = delta_step(state, queries, keys, values, decay, strength)
            # Σ_r weights_tr · S_mᵀ·q_t, m = routes_tr
            mixed += out * tl.sum(tl.where(route == memory, weight, 0.0), axis=0)
        if final is not None:
            store_matrix(head_state(final, entry, head, H, K, V), state, key, value, K, V)
    # o_t = scale · Σ_r weights_tr · S_mᵀ·q_t
    tl.store(o + (row * H + head) * V + value, (mixed * scale).to(o.dtype.element_ty), mask=value < V)


_step_tuned = Tuned(_step, STEP_TILES, ["K", "V", "M"])


@operator
def memory_mixture_one_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, routes: Tensor, weights: Tensor, scale: float,
    initial: Tensor | None, keep_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute `kernels.memory_mixture` of T = 1, without gradients: o and, if asked for, the new memories.

    q [B, 1, H, K], k [B, 1, M, H, K], v [B, 1, M, H, V], g, beta [B, 1, M, H], routes integer [B, 1, R],
    weights [B, 1, R], initial [B, M, H, K, V] or None. Returns o [B, 1, H, V] in v's dtype and, if `keep_state`, the
    memories [B, M, H, K, V] in fp32, else None.
    """
    q, k, v, g, beta, routes, weights = (x.contiguous() for x in (q, k, v, g, beta, routes, weights))
    initial = None if initial is None else initial.contiguous()
    batch, _, memories, heads, value_width = v.shape
    width, slots = q.shape[3], routes.shape[2]
    o = torch.empty(batch, 1, heads, value_width, dtype=v.dtype, device=v.device)
    shape = (batch, memories, heads, width, value_width)
    final = torch.empty(shape, dtype=torch.float32, device=q.device) if keep_state else None
    _step_tuned[lambda meta: (batch, heads, triton.cdiv(value_width, meta["BV"]))](
        q, k, v, g, beta, routes, weights, initial, o, final, scale, heads, memories, slots,
        K=width, V=value_width, BR=triton.next_power_of_2(slots), BK=padded(width),
    )  # fmt: skip
    return o, final


# The backend.


def memory_mixture_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    update: str = "gated_delta",  # others are refused before
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.memory_mixture` on a GPU; a single token without gradients has a kernel of its own.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None. Returns o [B, T, H, V] in v's dtype and
    the memories [N, M, H, K, V] in fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    memories = k.shape[2]
    given = (q, k, v, g, beta, weights, initial_state)
    moves = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    if q.shape[1] == 1 and cu_seqlens is None and not moves:
        given = (q, k, v, g, beta, routes, weights, scale, initial_state, output_final_state)
        return memory_mixture_one_token(*given, returns=(True, output_final_state))
    visits = sort_visits(routes, memories, cu_seqlens)
    place = inverse(visits, beta.shape[0] * beta.shape[1] * memories)
    x, state = delta_rule_triton(
        *Gather(q, k, v, g, beta, visits.token, visits.entry, visits.places, place, returns=(True,) * 5),
        scale=scale,
        initial_state=None if initial_state is None else initial_state.flatten(0, 1),
        output_final_state=output_final_state,
        cu_seqlens=visits.cu_seqlens,
    )
    o = Mix(x, weights, visits.places)
    return o, None if state is None else state.unflatten(0, (-1, memories))
