"""Attention over segments as two operators that are opaque to tracing.

The lengths of the segments are data. `torch.compile(fullgraph=True)` cannot trace through them and the meta
device does not have them, so both see an operator with a shape, a gradient and a cost.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.flops import attention_flops
from kernels.sdpa import query_block
from kernels.segments.eager import segment_attention_eager


@torch.library.custom_op("archzoo::segment_attention", mutates_args=())
def segment_attention_op(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Compute `segment_attention_eager` behind one operator."""
    return segment_attention_eager(q, k, v, cu_seqlens, causal=causal, window=window, scale=scale)


@segment_attention_op.register_fake
def _(q, k, v, cu_seqlens, causal, window, scale):
    return q.new_empty(*q.shape[:2], v.shape[-1])


@torch.library.custom_op("archzoo::segment_attention_backward", mutates_args=())
def segment_attention_backward_op(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k, v; computes the forward again, so that it needs only the inputs."""

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return segment_attention_eager(q, k, v, cu_seqlens, causal=causal, window=window, scale=scale)

    # Operators run below autograd, where requires_grad does nothing; torch.func brings its own.
    _, backward = torch.func.vjp(forward, q, k, v)
    dq, dk, dv = backward(grad)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@segment_attention_backward_op.register_fake
def _(grad, q, k, v, cu_seqlens, causal, window, scale):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save(ctx, inputs, output):
    q, k, v, cu_seqlens, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, cu_seqlens)


def _backward(ctx, grad):
    return *segment_attention_backward_op(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None


segment_attention_op.register_autograd(_backward, setup_context=_save)


def balanced_entries(tokens: int, segments: int, window: int | None) -> int:
    """Score entries of `tokens` in equal segments: n² each; under a window those of its blocks of queries."""
    length = tokens / max(segments, 1)
    return round(tokens * (length if window is None else min(length, window + query_block(window) - 1)))


@register_flop_formula(torch.ops.archzoo.segment_attention)
def _forward_flops(q, k, v, cu_seqlens, causal, window, scale, *, out_shape=None, **_) -> int:
    return attention_flops(q[1] * balanced_entries(q[0], cu_seqlens[0] - 1, window), q[2], v[2])


@register_flop_formula(torch.ops.archzoo.segment_attention_backward)
def _backward_flops(grad, q, k, v, cu_seqlens, causal, window, scale, *, out_shape=None, **_) -> int:
    return 2 * _forward_flops(q, k, v, cu_seqlens, causal, window, scale)
