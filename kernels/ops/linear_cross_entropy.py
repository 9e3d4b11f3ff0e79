"""A linear head and the cross-entropy of its logits in one: the definition, PyTorch's form in chunks, the function.

All logits are never there at once. A chunk of tokens is multiplied with the head, its losses are taken, and its logits
become their own gradient, from which the chunk's part of both factors' gradients is computed at once: the backward
only scales them. Nothing of the size [tokens, vocabulary] is written, saved, or computed twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import backward_costs, first_order
from kernels.dispatch import (
    Operation,
    always,
    in_autocast_dtype,
    on_cuda,
    only_when_named,
    reverse_mode_only,
    without_autocast,
)
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

Result = tuple[Tensor, Tensor, Tensor | None]
"""The sum over targets [], the nats of each [N], and whether it was the likeliest token, bool [N] or None."""

# The definition: all logits.


def linear_cross_entropy_reference(
    x: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100, right: bool = False
) -> Result:
    """Return Σ_n −log softmax(W·x_n)[y_n], its terms, and whether y_n is the likeliest token, in at least fp32.

    x [N, D], weight W [V, D], targets y int64 [N] -> a scalar, [N], bool [N] or None.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        logits = F.linear(x.to(wide), weight.to(wide))
    nats = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="none")
    is_right = (logits.argmax(-1) == targets) & (targets != ignore_index) if right else None
    return nats.sum(), nats.detach(), is_right


# Chunks of tokens, whatever computes their losses.

NUMBERS = 2**20
"""About the logits of a chunk on a CPU: its caches hold them."""
FEWEST = {"cpu": 256, "cuda": 1024}
"""Tokens of a chunk at least: every chunk reads and writes the gradient of the whole head once more."""

Losses = Callable[[Tensor, Tensor, bool, bool], tuple[Tensor, Tensor | None]]
"""(logits [C, V], targets [C], −1 where there is none, learns, right) -> (nats [C], bool [C] or None).

To learn it turns the logits into their gradient: softmax − onehot(target), 0 where there is no target."""


def in_chunks(
    x: Tensor, weight: Tensor, targets: Tensor, learns: bool, right: bool, losses: Losses
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nats [N] in at least fp32, what is right bool [N], and the gradients of x [N, D] and of the weight [V, D].

    targets: int64 [N], −1 where there is none. What is not asked for is empty.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    size = max(FEWEST["cpu" if x.device.type == "cpu" else "cuda"], NUMBERS // len(weight))
    nats = x.new_empty(len(x), dtype=wide)
    is_right = x.new_empty(len(x) if right else 0, dtype=torch.bool)
    dx = x.new_empty(x.shape if learns else 0)
    dweight = weight.new_zeros(weight.shape if learns else 0, dtype=wide)
    logits = x.new_empty(min(size, len(x)), len(weight))
    for start in range(0, len(x), size):
        part = slice(start, min(start + size, len(x)))
        rows, z = x[part], logits[: part.stop - start]
        torch.mm(rows, weight.t(), out=z)
        nats[part], found = losses(z, targets[part], learns, right)
        if found is not None:
            is_right[part] = found
        if learns:
            torch.mm(z, weight, out=dx[part])
            # In 16 bit each part is rounded once, and their sum once at the end.
            dweight.addmm_(z.t(), rows) if wide == x.dtype else dweight.add_(z.t() @ rows)
    return nats, is_right, dx, dweight.to(weight.dtype)


def _losses(logits: Tensor, targets: Tensor, learns: bool, right: bool) -> tuple[Tensor, Tensor | None]:
    """`Losses` by PyTorch's operators, in place."""
    there = targets >= 0
    place = targets.clamp_min(0).unsqueeze(-1)
    is_right = logits.argmax(-1) == targets if right else None
    wide = torch.promote_types(logits.dtype, torch.float32)
    z = logits.to(wide)
    torch.log_softmax(z, -1, out=z)
    nats = z.gather(-1, place).squeeze(-1).neg_().masked_fill_(~there, 0)
    if learns:
        z.exp_().scatter_add_(-1, place, z.new_full(place.shape, -1.0))
        if z.device.type != "cpu":  # there only what has a target comes here
            z.masked_fill_(~there.unsqueeze(-1), 0)
        if z is not logits:
            logits.copy_(z)
    return nats, is_right


# PyTorch's form, as an operator that is opaque to tracing.


def linear_cross_entropy_torch(
    x: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100, right: bool = False
) -> Result:
    """Compute `kernels.linear_cross_entropy`: x [N, D], weight [V, D], targets [N] -> [], [N], bool [N] or None."""
    reverse_mode_only("linear_cross_entropy", x, weight)
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    total, nats, is_right, *_ = linear_cross_entropy_op(x, weight, targets, ignore_index, learns, right)
    return total, nats, is_right if right else None


@torch.library.custom_op("archzoo::linear_cross_entropy", mutates_args=())
def linear_cross_entropy_op(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, learns: bool, right: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The sum [], nats [N], what is right [N], and for a gradient of 1 those of x [N, D] and of the weight [V, D]."""
    with without_autocast(x):
        asked = targets != ignore_index
        if x.device.type != "cpu" or bool(asked.all()):
            given = torch.where(asked, targets, -1)
            nats, *more = in_chunks(x, weight, given, learns, right, _losses)
            return nats.sum(), nats, *more
        # Of a task few tokens are asked for, and a CPU need not wait to know which.
        *found, dweight = in_chunks(x[asked], weight, targets[asked], learns, right, _losses)
        for place, wanted in enumerate((True, right, learns)):
            if wanted:
                part = found[place]
                found[place] = part.new_zeros(len(x), *part.shape[1:])
                found[place][asked] = part
        return found[0].sum(), *found, dweight


@linear_cross_entropy_op.register_fake
def _(x, weight, targets, ignore_index, learns, right):
    wide = torch.promote_types(x.dtype, torch.float32)
    nats, is_right = x.new_empty(len(x), dtype=wide), x.new_empty(len(x) if right else 0, dtype=torch.bool)
    gradients = (y.new_empty(y.shape if learns else 0) for y in (x, weight))
    return x.new_empty((), dtype=wide), nats, is_right, *gradients


def _save(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[3:])


def scaled(ctx, total: Tensor, *_) -> tuple[Tensor, Tensor]:
    """The gradients of x and the weight that were saved, times the sum's gradient []."""
    return tuple(y * total.to(y.dtype) for y in ctx.saved_tensors)


def _backward(ctx, *gradients):
    return *scaled(ctx, *gradients), None, None, None, None


linear_cross_entropy_op.register_autograd(first_order(_backward), setup_context=_save)
backward_costs(torch.ops.archzoo.linear_cross_entropy, 0.0)  # the forward has both products of the backward


@register_flop_formula(torch.ops.archzoo.linear_cross_entropy)
def _flops(x, weight, targets, ignore_index, learns, right, *, out_shape=None, **_) -> int:
    return 2 * x[0] * weight[0] * weight[1] * (3 if learns else 1)


# The public function and its backends.

__all__ = ["linear_cross_entropy"]


def _refuses(x: Tensor, weight: Tensor, targets: Tensor, **_options) -> str | None:
    return refusal(x, weight)


OPERATION = Operation("linear_cross_entropy")
OPERATION.register(
    "triton",
    lazily("kernels.ops.linear_cross_entropy_triton", "linear_cross_entropy_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", linear_cross_entropy_torch, suits=always)
OPERATION.register("reference", linear_cross_entropy_reference, suits=only_when_named)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    right: bool = False,
    backend: str = "auto",
) -> Result:
    """Return the cross-entropy of a linear head in nats, without all logits in memory.

        total = Σ_n nats_n,   nats_n = log Σ_v exp(w_v·x_n) − w_{y_n}·x_n,   0 where y_n = ignore_index

    x             [..., D], any floating dtype
    weight        [V, D], of the head, w_v
    targets       int64 [...], y from 0 to V − 1, or ignore_index
    ignore_index  the target of tokens that are not asked for
    right         also say whether y_n is the likeliest token, False where it is not asked for
    backend       auto, triton (what auto takes on a GPU), torch, reference
    returns       total [], which alone has a gradient, nats [...], right bool [...] or None; numbers in at least fp32.
                  Logits have the dtype of x (under autocast: autocast's), their softmax is computed in at least fp32

    Raises ValueError for shapes that do not fit, and for an unknown backend; NotImplementedError for forward-mode
    differentiation, which the reference alone has.
    Source: the chunks: Hsu et al. 2024, Liger Kernel (arXiv:2410.10989), section 3.2.
    """
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or targets.shape != x.shape[:-1]:
        raise ValueError(
            f"linear_cross_entropy needs x [..., D], weight [V, D], targets [...], got x {tuple(x.shape)}, "
            f"weight {tuple(weight.shape)}, targets {tuple(targets.shape)}"
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"linear_cross_entropy needs int64 targets, got {targets.dtype}")
    rows, weight = in_autocast_dtype(x.flatten(0, -2) if x.dim() > 1 else x[None], weight)
    options = {"ignore_index": ignore_index, "right": right, "backend": backend}
    total, nats, is_right = OPERATION(rows, weight, targets.flatten(), **options)
    return total, nats.view(targets.shape), None if is_right is None else is_right.view(targets.shape)


# Operations and bytes, for a roofline.


def work(x: Tensor, weight: Tensor, targets: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: a product forward, two backward, and the logits of a chunk thrice.

    Written by their product, replaced by their gradient, and read by the other two. x [..., D], weight [V, D],
    targets [...].
    """
    logits = targets.numel() * len(weight)
    products, moved = 2 * logits * weight.shape[1], logits * x.element_size()
    return [
        Work("linear_cross_entropy", "forward", products, nbytes(x, weight, targets) + 2 * moved),
        Work("linear_cross_entropy", "backward", 2 * products, 2 * nbytes(x, weight) + 3 * moved),
    ]
