"""The sum over a token's visits to memories, and its gradients.

Every sum is over a token's own visits, so that no row is written twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gradients import first_order
from kernels.triton_common.tuning import Tuned


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
