"""A linear map of its own for every group of rows: the public function, its definition and PyTorch's form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import (
    Operation,
    always,
    in_autocast_dtype,
    only_when_named,
    reverse_mode_only,
    without_autocast,
)

# The definition: every row with a copy of its matrix.


def grouped_linear_reference(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Return y_m = W_e · x_m [M, N] in x's dtype, computed in at least fp32, in memory M·N·K.

    Raises ValueError if the counts do not add up to the rows.
    """
    group = torch.arange(len(counts), device=x.device).repeat_interleave(counts.to(x.device))
    if len(group) != len(x):
        raise ValueError(f"grouped_linear: counts add up to {len(group)}, but there are {len(x)} rows")
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        return torch.einsum("mnk,mk->mn", weight.to(wide)[group], x.to(wide)).to(x.dtype)


# One matrix product a group, as two operators that are opaque to tracing.
#
# How many rows a group has is data, which neither a trace nor the meta device knows: both see an operator with a
# shape, a gradient and a cost.


def grouped_linear_torch(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Compute `kernels.grouped_linear`, y_m = W_e · x_m, by one product a group.

    x [M, K], weight [E, N, K], counts [E] with Σ = M -> [M, N].
    """
    reverse_mode_only("grouped_linear", x, weight)
    return grouped_linear_op(x, weight, counts)


@torch.library.custom_op("archzoo::grouped_linear", mutates_args=())
def grouped_linear_op(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Return y_m = W_e · x_m: x [M, K], weight [E, N, K], counts [E] -> [M, N]."""
    parts = zip(x.split(counts.tolist()), weight, strict=True)
    return torch.cat([part @ matrix.t() for part, matrix in parts])


@grouped_linear_op.register_fake
def _(x, weight, counts):
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op("archzoo::grouped_outer", mutates_args=())
def grouped_outer_op(g: Tensor, x: Tensor, counts: Tensor) -> Tensor:
    """Return for every group Σ_m g_m ⊗ x_m over its rows: g [M, N], x [M, K], counts [E] -> [E, N, K]."""
    lengths = counts.tolist()
    return torch.stack([a.t() @ b for a, b in zip(g.split(lengths), x.split(lengths), strict=True)])


@grouped_outer_op.register_fake
def _(g, x, counts):
    return g.new_empty(counts.shape[0], g.shape[1], x.shape[1])


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    x, weight, counts = ctx.saved_tensors
    return grouped_linear_op(grad, weight.mT, counts), grouped_outer_op(grad, x, counts), None


grouped_linear_op.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.grouped_linear)
def _linear_flops(x, weight, counts, *, out_shape=None, **_) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.archzoo.grouped_outer)
def _outer_flops(g, x, counts, *, out_shape=None, **_) -> int:
    return 2 * g[0] * g[1] * x[1]


# The public function and its backends.

__all__ = ["grouped_linear"]

OPERATION = Operation("grouped_linear")
OPERATION.register("torch", grouped_linear_torch, suits=always)
OPERATION.register("reference", grouped_linear_reference, suits=only_when_named)


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor, *, backend: str = "auto") -> Tensor:
    """Multiply every group of rows by a matrix of its own, as a mixture of experts does.

        y_m = W_e · x_m     for the group e that row m belongs to

    x        [M, K], rows in the order of their groups: the first counts[0] are group 0's, the next counts[1] group 1's
    weight   [E, N, K], as E weights of nn.Linear
    counts   integer [E], Σ = M, zeros allowed; read on the host
    backend  auto, torch (one product a group), reference
    returns  [M, N] in x's dtype (under autocast: autocast's)

    Raises ValueError for shapes that do not fit, and for an unknown backend;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    """
    shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, counts {tuple(counts.shape)}"
    if x.dim() != 2 or weight.dim() != 3 or counts.shape != weight.shape[:1] or x.shape[1] != weight.shape[2]:
        raise ValueError(f"grouped_linear needs x [M, K], weight [E, N, K], counts [E], got {shapes}")
    if counts.dtype.is_floating_point:
        raise ValueError(f"grouped_linear needs integer counts, got {counts.dtype}")
    x, weight = in_autocast_dtype(x, weight)
    return OPERATION(x, weight, counts, backend=backend)
