"""The fused operators of indexed attention, and when PyTorch's form takes them in place of the three operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops, first_order, gated
from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.numba_common import refusal
from kernels.ops.indexed_attention.torch_form import Indexer, Output, composed
from kernels.ops.lightning_topk.scores import AdaptiveK, wide
from kernels.ops.sparse_attention.select import gathers

# Two operators, opaque to tracing, in whichever form computes them.


class Form(NamedTuple):
    """The functions that compute a form's forward and backward pass, `attend` and `attend_backward`."""

    attend: Callable
    attend_backward: Callable


def _form(name: str) -> Form:
    """The form "torch" or "numba", imported when it is first asked for."""
    if name == "numba":
        from kernels.ops.indexed_attention.numba_form import attend_in_blocks as attend
        from kernels.ops.indexed_attention.numba_form import attend_in_blocks_backward as attend_backward
    else:
        from kernels.ops.indexed_attention.torch_form import attend, attend_backward
    return Form(attend, attend_backward)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    form: str,
    rule: AdaptiveK,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.indexed_attention` by the operators below, form "torch" or "numba".

    Shapes as there, but as many queries as keys, and nothing packed.
    """
    indexer = wide(q_idx, k_idx, w_idx, bias, tau)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    settings = (rule.rule, rule.base, rule.least, rule.most, rule.beta, rule.reference)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reverse_mode_only("indexed_attention", q, k, v, *indexer)
    o, loss, *_ = indexed_attention_op(q, k, v, *indexer, *settings, scale, scores, learns, form)
    return gated(o, gate_logits), loss


@torch.library.custom_op("archzoo::indexed_attention", mutates_args=())
def indexed_attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    rule: str,
    base: int,
    least: int,
    most: int,
    beta: float,
    reference: float,
    scale: float,
    scores: str,
    learns: bool,
    form: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o [B, T, H, V], the loss [], then what else the backward needs: lse, bits, and the loss's gradients."""
    indexer, adaptive = (
        Indexer(q_idx, k_idx, w_idx, bias, tau),
        AdaptiveK(rule, base, least, most, beta, reference),
    )
    with without_autocast(q):
        out, loss, grads = _form(form).attend(q, k, v, indexer, adaptive, scores, scale, learns)
    grads = [x.new_empty(0) for x in indexer] if grads is None else grads
    return out.o, loss, out.lse, out.bits, *(x.contiguous() for x in grads)


@indexed_attention_op.register_fake
def _(q, k, v, q_idx, k_idx, w_idx, bias, tau, *settings):
    batch, time, heads, _ = q.shape
    lse = q.new_empty(batch * k.shape[2], time * (heads // k.shape[2]), 1)
    bits = q.new_empty(batch, time, (time + 7) // 8, dtype=torch.uint8)
    grads = (x.new_empty(x.shape if settings[-2] else 0) for x in (q_idx, k_idx, w_idx, bias, tau))
    return q.new_empty(*q.shape[:3], v.shape[-1]), torch.empty_like(tau), lse, bits, *grads


@torch.library.custom_op("archzoo::indexed_attention_backward", mutates_args=())
def indexed_attention_backward_op(
    grad: Tensor,
    o: Tensor,
    lse: Tensor,
    bits: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    selected: int,
    form: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, T, H, K], k [B, T, Hkv, K] and v [B, T, Hkv, V] in their dtypes, for grad [B, T, H, V] of o.

    o, lse, bits: the tensors of `Output`; selected, the most keys that a query has, is for the count of FLOPs.
    """
    with without_autocast(q):
        gradients = _form(form).attend_backward(grad, Output(o, lse, bits), q, k, v, scale)
    return tuple(x.contiguous() for x in gradients)


@indexed_attention_backward_op.register_fake
def _(grad, o, lse, bits, q, k, v, scale, selected, form):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs, output):
    rule, base, _, most, _, _, ctx.scale, _, _, ctx.form = inputs[8:]
    ctx.selected = base if rule == "none" else most
    # What only one of the two outputs reaches has no gradient from the other.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], *output[2:], *inputs[:3])


def _backward(ctx, grad, grad_loss, *_others):
    o, lse, bits, *indexer, q, k, v = ctx.saved_tensors
    attended, learned = (None,) * 3, (None,) * 5
    if grad is not None:
        attended = indexed_attention_backward_op(
            grad, o, lse, bits, q, k, v, ctx.scale, ctx.selected, ctx.form
        )
    if grad_loss is not None and indexer[0].numel():
        learned = tuple(grad_loss * x for x in indexer)
    return *attended, *learned, *(None,) * 10


indexed_attention_op.register_autograd(first_order(_backward), setup_context=_save)


@register_flop_formula(torch.ops.archzoo.indexed_attention)
def _flops(q, k, v, q_idx, k_idx, w, bias, tau, rule, base, least, most, *more, out_shape=None, **_) -> int:
    """As the three operations count: attention and the loss over as many keys as may be selected, scores of all."""
    selected = min(base if rule == "none" else most, k[1])
    queries, scores = q[0] * q[1], 2 * q_idx[2] * q_idx[3]
    target = queries * selected * (2 * q[2] * q[3] + scores * (3 if more[-2] else 1))
    return _attention_flops(q, k, v, selected) + queries * k[1] * scores + target


@register_flop_formula(torch.ops.archzoo.indexed_attention_backward)
def _backward_flops(grad, o, lse, bits, q, k, v, scale, selected, form, *, out_shape=None, **_) -> int:
    return 2 * _attention_flops(q, k, v, selected)


def _attention_flops(q, k, v, selected: int) -> int:
    return attention_flops(q[0] * q[1] * q[2] * min(selected, k[1]), q[3], v[3])


# PyTorch's form: fused where that is cheaper than the three operations apart.


def indexed_attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    rule: AdaptiveK,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
    **choice: int,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.indexed_attention`: fused where a mask over all keys is cheaper than copies of the selected.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI],
    bias [HI], tau [], gate_logits [B, Tq, H, V] or None -> o [B, Tq, H, V] in q's dtype, the loss [] in at least fp32.
    """
    options = {"rule": rule, "gate_logits": gate_logits, "scale": scale, "scores": scores, **choice}
    fuses = not choice and _fuses(q, k, rule, cu_seqlens)
    compute = functools.partial(fused, form="torch") if fuses else composed("torch")
    return compute(q, k, v, q_idx, k_idx, w_idx, bias, tau, cu_seqlens=cu_seqlens, **options)


def _fuses(q: Tensor, k: Tensor, rule: AdaptiveK, cu_seqlens: Tensor | None) -> bool:
    """Return whether the fused form serves: fp32 or fp64 on a CPU, one length, too many keys selected to copy them."""
    if q.shape[1] != k.shape[1]:
        return False
    plain = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return plain and cu_seqlens is None and not gathers(rule.widest, k.shape[1], q.shape[2] // k.shape[2])


# Numba's form: every query reads its own keys alone, compiled for the processor at hand.

indexed_attention_numba = functools.partial(fused, form="numba")
"""Compute `kernels.indexed_attention` for what `refuses_numba` does not refuse; shapes as there."""


def refuses_numba(
    q: Tensor, k: Tensor, v: Tensor, *indexer: Tensor, cu_seqlens: Tensor | None = None, **options
) -> str | None:
    """Return why Numba cannot serve a call of `indexed_attention`, None if it can."""
    if q.shape[1] != k.shape[1]:
        return f"needs as many queries as keys, got {q.shape[1]} and {k.shape[1]}"
    if cu_seqlens is not None:
        return "takes no packed sequences"
    if "share" in options:
        return "selects single keys for every query"
    return refusal(q, k, v, *indexer)
