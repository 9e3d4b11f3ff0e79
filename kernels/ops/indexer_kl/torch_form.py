"""The indexer's loss in blocks of queries, with its gradient in the same pass.

The target p costs as much as attention and is needed for the value and for the gradient. So the operator computes
both, keeps the gradients (which are as small as the indexer's inputs), and the backward scales them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import first_order
from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.indices import block_size, numbers, penalties, query_blocks
from kernels.ops.lightning_topk.scores import index_logits, wide
from kernels.ops.sparse_attention.select import gather, selected_mask, shifted, spans

# The pairs of tokens, a block of queries at a time.


def gathers(selected: int, keys: int, copied: int) -> bool:
    """Return whether copies of `selected` keys for every query, of `copied` numbers each, are cheaper than a mask.

    Measured on a CPU core. A gathered pair of tokens costs as much as 2.5 masked ones, and one more for every 40
    numbers copied; most of either is exponentials and passes, so that fewer keys are worth a copy sooner than
    in attention.
    """
    return selected * (2.5 + copied / 40) <= keys


@dataclass(frozen=True)
class Part:
    """A block of C queries and the S keys that it reads, or n gathered keys a query.

    queries, keys  their places along the axes of queries and keys
    mask           bool [B or 1, C, S] or [B, C, n]: which keys are in the loss
    places         integer [B, C, n], where keys are gathered: places among the S keys, −1 where unused; else None
    """

    queries: slice
    keys: slice
    mask: Tensor
    places: Tensor | None = None

    def read(self, x: Tensor) -> Tensor:
        """Read the block's keys of x [B, T, ...]: [B, S, ...], or gathered [B, C, ..., n, D]."""
        x = x[:, self.keys]
        if self.places is None:
            return x
        return gather(x, self.places) if x.dim() == 4 else gather(x.unsqueeze(2), self.places).squeeze(2)

    def add(self, more: Tensor, total: Tensor) -> None:
        """Add a gradient of index keys as read, [B, S, D] or [B, C, n, D], to that of all, [B, T, D]."""
        total = total[:, self.keys]
        if self.places is None:
            total += more
            return
        rows = self.places.clamp_min(0).to(torch.int64).flatten(1).unsqueeze(-1)
        total.scatter_add_(1, rows.expand(-1, -1, total.shape[-1]), more.flatten(1, 2))


def parts(
    q: Tensor, k: Tensor, q_idx: Tensor, indices: Tensor | None, cu_seqlens: Tensor | None
) -> Iterator[Part]:
    """Yield blocks of queries with all keys that they see or, given indices, with the selected ones.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], indices [B, Tq, n] or None, cu_seqlens [N+1] or None.
    """
    (batch, time), keys = q.shape[:2], k.shape[1]
    heads, index_width = max(q.shape[2], q_idx.shape[2]), q_idx.shape[3]
    if indices is None:
        size = block_size(batch * heads * keys, q.device)
        for block in query_blocks(time, keys, size, cu_seqlens, q.device):
            yield Part(slice(block.first, block.last), slice(block.begin, block.end), block.visible[None])
        return
    selected, copied = indices.shape[2], k[0, 0].numel() + index_width
    copies = selected * copied if gathers(selected, keys, copied) else 0
    size = block_size(batch * max(heads * keys, copies), q.device)
    for first, last, begin, end in spans(indices, size, keys):
        queries, seen, chosen = slice(first, last), slice(begin, end), shifted(indices[:, first:last], begin)
        if gathers(selected, end - begin, copied):
            yield Part(queries, seen, chosen >= 0, chosen)
        else:
            yield Part(queries, seen, selected_mask(chosen, end - begin))


# The loss and its gradient, as an operator.


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
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.indexer_kl` in blocks of queries; gradients only where autograd needs them.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], tau [],
    indices [B, Tq, n] or None -> [] in at least fp32, in nats.
    """
    indexer = wide(q_idx, k_idx, w_idx, bias, tau)
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reverse_mode_only("indexer_kl", *indexer)
    return indexer_kl_op(q.detach(), k.detach(), *indexer, indices, scale, scores, cu_seqlens, learns)[0]


def attention_target(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The target p [B, C, S]: attention over the mask [B or 1, C, S], averaged over heads, summing to 1.

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
    penalty = penalties(mask, scores.dtype).unsqueeze(2)
    p = scores.mul_(scale).add_(penalty).softmax(-1).mean(2)
    p = p.mul_(numbers(mask, p.dtype))
    return p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)


def divergence(
    indexer: list[Tensor], p: Tensor, mask: Tensor, weight: Tensor, kind: str, learns: bool
) -> tuple[Tensor, list[Tensor]]:
    """The loss Σ_t weight_t·KL(p_t ‖ π_t), π = softmax(τ·I) over the mask, and, if `learns`, its gradients.

    indexer: q [B, C, HI, DI], k [B, S, DI] or gathered [B, C, S, DI], w [B, C, HI], bias [HI], tau []. With
    z the logits of the indexer's heads: ∂/∂(τI) = weight·(π − p), ∂I/∂w = σ(z), ∂I/∂z = w·σ′(z), where σ′ is
    σ(z)·(1 − σ(z)) of a sigmoid, and of a ReLU 1 where σ(z) > 0.
    """
    q, k, w, bias, tau = indexer
    logits = index_logits(q, k, bias)
    active = logits.sigmoid() if kind == "sigmoid" else logits.relu()
    scores = (w.unsqueeze(-1) * active).sum(2)
    seen, logits = numbers(mask, p.dtype), (tau * scores).add_(penalties(mask, p.dtype))
    logs = p.clamp_min(torch.finfo(p.dtype).tiny).log_().sub_(logits.log_softmax(-1))
    value = (weight * logs.mul_(p).sum(-1)).sum()
    if not learns:
        return value, []
    slope = logits.softmax(-1).sub_(p).mul_(weight.unsqueeze(-1)).mul_(seen)
    by_score = (slope * tau).unsqueeze(2)
    d_w = (by_score * active).sum(-1)
    d_z = active.mul_(1 - active) if kind == "sigmoid" else active.sign_()
    d_z = d_z.mul_(by_score).mul_(w.unsqueeze(-1))
    scale = q.shape[-1] ** -0.5
    if k.dim() == 4:
        d_q, d_k = d_z @ k, d_z.transpose(-1, -2) @ q
    else:
        flat = d_z.flatten(1, 2)
        d_q, d_k = (flat @ k).view_as(q), flat.transpose(-1, -2) @ q.flatten(1, 2)
    return value, [d_q * scale, d_k * scale, d_w, d_z.sum((0, 1, 3)), (slope * scores).sum()]


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
    scores: str,
    cu_seqlens: Tensor | None,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss [] and its gradients for q_idx, k_idx, w_idx, bias, tau, in their shapes: empty unless `learns`.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], tau [],
    indices [B, Tq, n] or None.
    """
    indexer = q_idx, k_idx, w_idx, bias, tau
    weights, loss = _weights(q_idx, cu_seqlens), torch.zeros_like(tau)
    grads = [x.new_zeros(x.shape if learns else 0) for x in indexer]
    with without_autocast(q):
        for part in parts(q, k, q_idx, indices, cu_seqlens):
            rows = part.queries
            p = attention_target(q[:, rows], part.read(k), part.mask, scale)
            inputs = [q_idx[:, rows], part.read(k_idx), w_idx[:, rows], bias, tau]
            value, part_grads = divergence(inputs, p, part.mask, weights[:, rows], scores, learns)
            loss += value
            if learns:
                grads[0][:, rows], d_k, grads[2][:, rows], d_bias, d_tau = part_grads
                part.add(d_k, grads[1])
                grads[3] += d_bias
                grads[4] += d_tau
    return loss, *grads


def _weights(q_idx: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """weight_t [B, T], summing to 1: every sequence counts the same, and so does every query of a sequence."""
    batch, time = q_idx.shape[:2]
    if cu_seqlens is None:
        return q_idx.new_full((batch, time), 1 / (batch * time))
    lengths = cu_seqlens.diff()
    each = 1 / (lengths * lengths.shape[0]).to(q_idx.dtype)
    return each.repeat_interleave(lengths, output_size=time)[None]


@indexer_kl_op.register_fake
def _(q, k, q_idx, k_idx, w_idx, bias, tau, indices, scale, scores, cu_seqlens, learns):
    inputs = (q_idx, k_idx, w_idx, bias, tau)
    return torch.empty_like(tau), *(x.new_empty(x.shape if learns else 0) for x in inputs)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])


def _backward(ctx, grad, *_others):
    gradients = [grad * x for x in ctx.saved_tensors]
    return None, None, *gradients, *(None,) * 5


indexer_kl_op.register_autograd(first_order(_backward), setup_context=_save)


@register_flop_formula(torch.ops.archzoo.indexer_kl)
def _flops(
    q, k, q_idx, k_idx, w_idx, bias, tau, indices, scale, scores, cu_seqlens, learns, *, out_shape=None, **_
) -> int:
    """The attention's scores once; the indexer's once and twice more for gradients; all pairs or those selected."""
    batch, time, heads, width = q
    pairs = batch * time * (k[1] if indices is None else min(indices[2], k[1]))
    return 2 * pairs * (heads * width + q_idx[2] * q_idx[3] * (3 if learns else 1))
