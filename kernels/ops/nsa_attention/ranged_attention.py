"""Attention of every query to ranges of keys, as an operator with Numba's kernels behind it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.flops import attention_flops
from kernels.gradients import first_order
from kernels.numba_common import in_parts, parts_of
from kernels.numba_common.layout import array, arrays, by_kv_head, by_query, keys_by_head, keys_by_position


@torch.library.custom_op("archzoo::ranged_attention", mutates_args=())
def ranged_attention_op(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, scale: float, most: int
) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and log-sum-exps [B, Hkv, T, G]: softmax of scale·q·k over the keys in each query's ranges.

    q [B, T, H, K], k [B, S, Hkv, K], v [B, S, Hkv, V], fp32; ranges int32 [B or 1, Hkv or 1, T, n, 2], [start, stop) in
    rising order, apart from each other, of at most `most` keys together. A query without keys gets 0.
    """
    from kernels.ops.nsa_attention.numba_ranges import Ranged, forward

    q, k, v = (x.detach() for x in (q, k, v))
    given, parts = _given(q, k, v, ranges, scale), parts_of(len(q))
    o = q.new_zeros(*given[0].shape[:4], given[2].shape[3])
    lse = q.new_zeros(len(q), k.shape[2], q.shape[1], q.shape[2] // k.shape[2])

    def work(b: int, part: int) -> None:
        forward(Ranged(*arrays(given, b)), max(1, most), *arrays((o, lse), b), part, parts)

    in_parts(work, len(q))
    return by_query(o, (*q.shape[:3], v.shape[3])), lse


@ranged_attention_op.register_fake
def _(q, k, v, ranges, scale, most):
    lse = q.new_empty(len(q), k.shape[2], q.shape[1], q.shape[2] // k.shape[2])
    return q.new_empty(*q.shape[:3], v.shape[3]), lse


@torch.library.custom_op("archzoo::ranged_attention_backward", mutates_args=())
def ranged_attention_backward_op(
    grad: Tensor,
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor,
    scale: float,
    most: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v in their shapes for that of o, grad [B, T, H, V]; o, lse: what the operator returned."""
    from kernels.ops.nsa_attention.numba_ranges import Ranged, backward

    grad, o, lse, q, k, v = (x.detach() for x in (grad, o, lse, q, k, v))
    given, parts, kv_heads = _given(q, k, v, ranges, scale), parts_of(len(q)), k.shape[2]
    out = (by_kv_head(o, kv_heads), lse, by_kv_head(grad, kv_heads))
    d_q = torch.zeros_like(given[0])
    d_k, d_v = (x.new_zeros(len(q), parts, *x.shape[1:]) for x in given[1:3])

    def work(b: int, part: int) -> None:
        own = (array(d_q[b]), *arrays((d_k, d_v), b, part))
        backward(Ranged(*arrays(given, b)), *arrays(out, b), *own, part, parts)

    in_parts(work, len(q))
    dk, dv = keys_by_position(d_k.sum(1), k), keys_by_position(d_v.sum(1), v)
    return by_query(d_q.mul_(scale), q.shape), dk, dv


@ranged_attention_backward_op.register_fake
def _(grad, o, lse, q, k, v, ranges, scale, most):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _given(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The tensors of `Ranged`, of all sequences."""
    ranges = ranges.expand(len(q), *ranges.shape[1:])
    return by_kv_head(q * scale, k.shape[2]), keys_by_head(k), keys_by_head(v), ranges


def _save(ctx, inputs, output):
    *tensors, ctx.scale, ctx.most = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad, _lse):
    found = ranged_attention_backward_op(grad.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.most)
    return *found, None, None, None


ranged_attention_op.register_autograd(first_order(_backward), setup_context=_save)


@register_flop_formula(torch.ops.archzoo.ranged_attention)
def _flops(q, k, v, ranges, scale, most, *, out_shape=None, **_) -> int:
    """Every query counts as the one with most keys."""
    return attention_flops(q[0] * q[1] * q[2] * most, q[3], v[3])


@register_flop_formula(torch.ops.archzoo.ranged_attention_backward)
def _backward_flops(grad, o, lse, q, k, v, ranges, scale, most, *, out_shape=None, **_) -> int:
    return 2 * _flops(q, k, v, ranges, scale, most)
