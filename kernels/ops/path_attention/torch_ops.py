"""PaTH attention in blocks, as two operators that are opaque to tracing.

Their loops over blocks would be traced once a pair of blocks, and the lengths of packed sequences are data: so
`torch.compile` and the meta device see operators with a shape, a gradient and a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import reverse_mode_only
from kernels.ops.path_attention.flops import path_flops
from kernels.ops.path_attention.layout import attend, attend_backward
from kernels.packing.rectangles import Rectangles


def path_attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.path_attention` blockwise; gradients of first order.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reverse_mode_only("path_attention", q, k, v, w, beta, g)
    return path_attention_op(q, k, v, w, beta, g, cu_seqlens, scale)[0]


@torch.library.custom_op("archzoo::path_attention", mutates_args=())
def path_attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Output o [B, T, H, V] and log-sum-exps [B, T, H]."""
    inputs = (q, k, v, w, beta, g)
    if cu_seqlens is None:
        return attend(*inputs, scale)
    return tuple(by_length(lambda *x: attend(*x, scale), inputs, cu_seqlens, q.shape[2]))


@path_attention_op.register_fake
def _(q, k, v, w, beta, g, cu_seqlens, scale):
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=wide)


@torch.library.custom_op("archzoo::path_attention_backward", mutates_args=())
def path_attention_backward_op(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
) -> list[Tensor]:
    """Gradients of those of q, k, v, w, beta, g that are not None, each in its shape and dtype.

    grad, out [B, T, H, V] and lse [B, T, H]: the gradient of the output, and the results of `path_attention_op`.
    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None.
    """
    inputs = (grad, out, lse, q, k, v, w, beta, g)

    def run(*x: Tensor | None) -> list[Tensor]:
        return [d for d in attend_backward(*x, scale) if d is not None]

    return run(*inputs) if cu_seqlens is None else by_length(run, inputs, cu_seqlens, q.shape[2])


@path_attention_backward_op.register_fake
def _(grad, out, lse, q, k, v, w, beta, g, cu_seqlens, scale):
    return [x.new_empty(x.shape) for x in (q, k, v, w, beta, g) if x is not None]


def _save(ctx, inputs, output):
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad, _):
    found = iter(path_attention_backward_op(grad, *ctx.saved_tensors, ctx.scale))
    inputs = ctx.saved_tensors[2:-1]
    return *(None if x is None else next(found) for x in inputs), None, None


path_attention_op.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.path_attention)
def _forward_flops(q, k, v, w, beta, g, cu_seqlens, scale, *, out_shape=None, **_) -> int:
    """Packed sequences are counted as if they were of equal length."""
    sequences = q[0] if cu_seqlens is None else max(1, cu_seqlens[0] - 1)
    time = q[1] if cu_seqlens is None else round(q[1] / sequences)
    return path_flops(sequences, time, q[2], k[2], k[3], v[3], turns=w is not None)


@register_flop_formula(torch.ops.archzoo.path_attention_backward)
def _backward_flops(grad, out, lse, *inputs, out_shape=None, **_) -> int:
    return 2 * _forward_flops(*inputs)


def by_length(
    run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], cu_seqlens: Tensor, heads: int
) -> list[Tensor]:
    """Apply a function of [B, T, ...] tensors to packed ones [1, T, ...], once a batch of about one length."""
    axis = Rectangles.of(cu_seqlens, heads).axis()
    if not axis.shapes:
        return list(run(*inputs))
    none = [None] * len(axis.shapes)
    batches = zip(*(none if x is None else axis.spread(x[0]) for x in inputs), strict=True)
    results = [run(*batch) for batch in batches]
    return [axis.collect(parts).unsqueeze(0) for parts in zip(*results, strict=True)]
