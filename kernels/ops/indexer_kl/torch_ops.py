"""The indexer's loss in blocks of queries, with its gradient in the same pass.

The target p costs as much as attention and is needed for the value and for the gradient. So the operator
computes both, keeps the gradients (which are as small as the indexer's inputs), and the backward scales them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.blocks import block_size, query_blocks
from kernels.checks import without_autocast
from kernels.ops.lightning_topk.scores import index_scores, wide
from kernels.ops.sparse_attention.select import gather, gathers, selected_mask, shifted, spans


def indexer_kl_torch(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """The operator that holds the blocks; without its gradients where nobody will ask for them."""
    indexer = wide(q_idx, k_idx, w_idx, bias, tau)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return indexer_kl_op(q.detach(), k.detach(), *indexer, indices, scale, cu_seqlens, learns)[0]


def attention_target(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> Tensor:
    """p [B, C, S]: attention over the mask [B or 1, C, S], averaged over heads, summing to 1.

    q [B, C, H, K]; k [B, S, Hkv, K], or [B, C, Hkv, S, K] gathered for every query.
    """
    q, k = wide(q, k)
    if k.dim() == 5:
        groups = q.unflatten(2, (k.shape[2], -1))
        scores = (groups @ k.transpose(-1, -2)).flatten(2, 3)
    else:
        groups = q.unflatten(2, (k.shape[2], -1)).permute(0, 2, 1, 3, 4)
        scores = groups.flatten(2, 3) @ k.permute(0, 2, 3, 1)
        scores = scores.unflatten(2, groups.shape[2:4]).transpose(1, 2).flatten(2, 3)
    hidden = ~mask.unsqueeze(2)
    p = scores.mul_(scale).masked_fill_(hidden, torch.finfo(scores.dtype).min).softmax(-1).mean(2)
    p = p.masked_fill_(~mask, 0)
    return p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)


def divergence(
    q: Tensor, k: Tensor, w: Tensor, bias: Tensor, tau: Tensor, *, p: Tensor, mask: Tensor, weight: Tensor
) -> Tensor:
    """Σ_t weight_t·KL(p_t ‖ softmax(τ·I_t)) over the mask; q, k, w, bias as `index_scores` takes them."""
    scores = (tau * index_scores(q, k, w, bias)).masked_fill(~mask, torch.finfo(p.dtype).min)
    chosen = scores.log_softmax(-1).masked_fill(~mask, 0)
    return (weight * (torch.special.xlogy(p, p) - p * chosen).sum(-1)).sum()


Part = tuple[slice, slice, Tensor, Tensor | None]
"""A block: its queries, the keys it reads, its mask, and the places of gathered keys among those it reads."""


def _parts(
    q: Tensor, k: Tensor, heads: int, indices: Tensor | None, cu_seqlens: Tensor | None
) -> Iterator[Part]:
    batch, time = q.shape[:2]
    if indices is None:
        size = block_size(batch * heads * time, q.device)
        for block in query_blocks(time, time, size, cu_seqlens, q.device):
            yield slice(block.first, block.last), slice(block.begin, block.end), block.visible[None], None
        return
    selected, group = indices.shape[2], q.shape[2] // k.shape[2]
    few = gathers(selected, time, group)
    size = block_size(batch * max(heads * time, selected * k[0, 0].numel() * few), q.device)
    for first, last, begin, end in spans(indices, size, time):
        queries, keys, chosen = slice(first, last), slice(begin, end), shifted(indices[:, first:last], begin)
        if gathers(selected, end - begin, group):
            yield queries, keys, chosen >= 0, chosen
        else:
            yield queries, keys, selected_mask(chosen, end - begin), None


@torch.library.custom_op("archzoo::indexer_kl", mutates_args=())
def indexer_kl_op(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    indices: Tensor | None,
    scale: float,
    cu_seqlens: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss [] and, where `learns`, its gradients for q_idx, k_idx, w_idx, bias, tau (else empty tensors)."""
    weights = _weights(q_idx, cu_seqlens)
    loss = torch.zeros_like(tau)
    grads = [torch.zeros_like(x) for x in (q_idx, k_idx, w_idx, bias, tau)] if learns else None
    with without_autocast(q):
        for queries, keys, mask, places in _parts(q, k, max(q.shape[2], q_idx.shape[2]), indices, cu_seqlens):
            seen = k[:, keys] if places is None else gather(k[:, keys], places)
            p = attention_target(q[:, queries], seen, mask, scale)
            inputs = q_idx[:, queries], k_idx[:, keys], w_idx[:, queries], bias, tau
            value = partial(_value, places=places, p=p, mask=mask, weight=weights[:, queries])
            if grads is None:
                loss += value(*inputs)
                continue
            # Operators run below autograd, where requires_grad does nothing; torch.func brings its own.
            part, backward = torch.func.vjp(value, *inputs)
            loss += part
            found = backward(torch.ones_like(part))
            targets = grads[0][:, queries], grads[1][:, keys], grads[2][:, queries], grads[3], grads[4]
            for total, more in zip(targets, found, strict=True):
                total += more
    return loss, *(grads or [tau.new_empty(0) for _ in range(5)])


def _value(
    q: Tensor, k: Tensor, w: Tensor, bias: Tensor, tau: Tensor, *, places: Tensor | None, **rest: Tensor
) -> Tensor:
    if places is not None:
        k = gather(k.unsqueeze(2), places).squeeze(2)
    return divergence(q, k, w, bias, tau, **rest)


def _weights(q_idx: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """[B, T], summing to 1: every sequence counts the same, and so does every query of a sequence."""
    batch, time = q_idx.shape[:2]
    if cu_seqlens is None:
        return q_idx.new_full((batch, time), 1 / (batch * time))
    lengths = cu_seqlens.diff()
    each = 1 / (lengths * lengths.shape[0]).to(q_idx.dtype)
    return each.repeat_interleave(lengths, output_size=time)[None]


@indexer_kl_op.register_fake
def _(q, k, q_idx, k_idx, w_idx, bias, tau, indices, scale, cu_seqlens, learns):
    inputs = (q_idx, k_idx, w_idx, bias, tau)
    return torch.empty_like(tau), *(x.new_empty(x.shape if learns else 0) for x in inputs)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])


def _backward(ctx, grad, *_others):
    found = [grad * x for x in ctx.saved_tensors]
    return None, None, *found, None, None, None, None


indexer_kl_op.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.indexer_kl)
def _flops(
    q, k, q_idx, k_idx, w_idx, bias, tau, indices, scale, cu_seqlens, learns, *, out_shape=None, **_
) -> int:
    """The attention's scores once; the indexer's once, and twice more for gradients. All pairs, or those selected."""
    batch, time, heads, width = q
    pairs = batch * time * (time if indices is None else min(indices[2], time))
    return 2 * pairs * (heads * width + q_idx[2] * q_idx[3] * (3 if learns else 1))
