"""Grouped products, one matrix product a group, as two operators that are opaque to tracing.

How many rows a group has is data, which neither a trace nor the meta device knows: both see an operator with
a shape, a gradient and a cost.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import reverse_mode_only


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
