"""The cross-entropy of a chunk of logits on a GPU, in two passes over a row: its sum of exponentials, its gradient.

A program owns a token. Its logits are read once for the loss and once more, mostly from the cache, for the gradient
that replaces them; products are the library's (kernels.ops.linear_cross_entropy).

    m = max_v z_v,   s = Σ_v exp(z_v − m),   nats = log s + m − z_y,   z̄_v = exp(z_v − m)/s − [v = y]
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.linear_cross_entropy import Result, in_chunks, scaled
from kernels.triton_common.operators import operator


@triton.jit
def _cross_entropy(
    z, target, nats, right, V,
    LEARNS: tl.constexpr, RIGHT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The loss of every token, whether its target was the likeliest, and the gradient in the place of its logits.

    inputs     z [M, V] logits; target int64 [M], −1 where there is none
    outputs    nats fp32 [M], NaN for a target of V or more; right bool [M] (RIGHT); z [M, V] gradients (LEARNS)
    sizes      V tokens of the vocabulary
    constants  LEARNS; RIGHT; BV tokens at a time
    """
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(target + row)
    z += row * V
    column = tl.arange(0, BV)
    largest, total = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
    best = tl.zeros((), tl.int64)
    for start in range(0, V, BV):
        there = start + column < V
        tile = tl.load(z + start + column, mask=there, other=float("-inf")).to(tl.float32)
        found = tl.max(tile, axis=0)
        if RIGHT:  # the first of the largest
            place = tl.min(tl.where(tile == found, column, BV), axis=0)
            best = tl.where(found > largest, (start + place).to(tl.int64), best)
        higher = tl.maximum(largest, found)
        # −∞ − (−∞) would be NaN; a NaN, which maxima drop, stays one in the sum.
        centre = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(largest - centre) + tl.sum(tl.exp(tile - centre), axis=0)
        largest = higher
    asked = y >= 0
    score = tl.load(z + y, mask=asked & (y < V), other=float("nan")).to(tl.float32)
    tl.store(nats + row, tl.where(asked, tl.log(total) + largest - score, 0.0))
    if RIGHT:
        tl.store(right + row, best == y)
    if LEARNS:
        share = tl.where(asked, 1 / total, 0.0)
        for start in range(0, V, BV):
            there = start + column < V
            tile = tl.load(z + start + column, mask=there, other=0.0).to(tl.float32)
            gradient = tl.exp(tile - largest) * share - tl.where(start + column == y, 1.0, 0.0)
            tl.store(z + start + column, tl.where(asked, gradient, 0.0).to(z.dtype.element_ty), mask=there)


WIDEST = 4096
"""Logits of a tile: 16 numbers a thread. Fixed, as a kernel that writes over its inputs cannot be timed again."""


def _losses(logits: Tensor, targets: Tensor, learns: bool, right: bool) -> tuple[Tensor, Tensor | None]:
    """`Losses` by one launch."""
    nats = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    is_right = torch.empty(len(logits), dtype=torch.bool, device=logits.device) if right else None
    sizes = {"V": logits.shape[1], "BV": min(WIDEST, triton.next_power_of_2(logits.shape[1]))}
    grid = (len(logits),)
    _cross_entropy[grid](logits, targets, nats, is_right, **sizes, LEARNS=learns, RIGHT=right, num_warps=8)
    return nats, is_right


@operator
class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, targets, ignore_index, right):
        given = torch.where(targets == ignore_index, -1, targets)
        learns = any(ctx.needs_input_grad)
        nats, is_right, *gradients = in_chunks(x, weight, given, learns, right, _losses)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(nats, is_right)
        return nats.sum(), nats, is_right

    @staticmethod
    @first_order
    def backward(ctx, *gradients):
        return *scaled(ctx, *gradients), None, None, None


def linear_cross_entropy_triton(
    x: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100, right: bool = False
) -> Result:
    """Compute `kernels.linear_cross_entropy` on a GPU: a launch a chunk between the library's products.

    x [N, D], weight [V, D], targets [N] -> a scalar, [N], bool [N] or None.
    """
    returns = (True, True, True)
    total, nats, is_right = _LinearCrossEntropy(x, weight, targets, ignore_index, right, returns=returns)
    return total, nats, is_right if right else None
