"""Indexed attention in PyTorch: its three operations in a row, or fused, a block of queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.indices import Block, block_size, pack, penalties, query_blocks, unpack
from kernels.ops.indexer_kl import indexer_kl
from kernels.ops.lightning_topk import lightning_topk
from kernels.ops.lightning_topk.scores import (
    AdaptiveK,
    active_alike,
    best_first,
    ranks,
    variances,
    weighted_sum,
)
from kernels.ops.lightning_topk.torch_form import lowest_kept
from kernels.ops.sparse_attention import sparse_attention

# What the fused forms read and write, and tensors by KV head: heads that share one are rows of one product.


class Indexer(NamedTuple):
    """q [B, T, HI, DI], k [B, T, DI], w [B, T, HI], bias [HI], tau []."""

    q: Tensor
    k: Tensor
    w: Tensor
    bias: Tensor
    tau: Tensor


class Output(NamedTuple):
    """o [B, T, H, V]; log-sum-exps by KV head [B·Hkv, T·G, 1]; the selection's bits [B, T, ⌈T/8⌉]."""

    o: Tensor
    lse: Tensor
    bits: Tensor


def by_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """Queries [B, T, H, D] -> [B·Hkv, T·G, D], the G heads of a KV head next to each other."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).reshape(len(x) * kv_heads, -1, x.shape[-1])


def by_query(x: Tensor, shape: torch.Size, kv_heads: int) -> Tensor:
    """The inverse of `by_kv_head`: [B·Hkv, T·G, D] -> [B, T, H, D], shape [B, T, H, …]."""
    batch, time, heads = shape[:3]
    return x.view(batch, kv_heads, time, heads // kv_heads, -1).transpose(1, 2).flatten(2, 3)


def keys_by_head(x: Tensor) -> Tensor:
    """Keys or values [B, T, Hkv, D] -> [B·Hkv, T, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def keys_by_position(x: Tensor, heads: int) -> Tensor:
    """The inverse of `keys_by_head`: [B·Hkv, T, D] -> [B, T, Hkv, D]."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2)


def with_column(x: Tensor, column: Tensor | float) -> Tensor:
    """x [..., D] with one more column [..., 1], so that a product adds a term without a pass of its own."""
    if isinstance(column, float):
        column = x.new_full((*x.shape[:-1], 1), column)
    return torch.cat([x, column.to(x.dtype)], -1)


# The three operations, one after the other.


def composed(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`kernels.indexed_attention` with this backend of `lightning_topk`, `sparse_attention` and `indexer_kl`.

    The function returned takes q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], q_idx [B, Tq, HI, DI],
    k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI] and tau [], and returns o [B, Tq, H, V] and the loss [].
    """

    def run(
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
        indexer, options = (q_idx, k_idx, w_idx, bias), {"cu_seqlens": cu_seqlens, "backend": backend}
        selects = {**options, "backend": "torch"} if choice and backend == "triton" else options
        indices = lightning_topk(*indexer, k=rule, scores=scores, **selects, **choice)
        o = sparse_attention(q, k, v, indices, gate_logits=gate_logits, scale=scale, **options)
        if backend == "triton" and q.shape[1] < k.shape[1]:
            options["backend"] = "torch"  # the loss of fewer queries than keys has no Triton form
        return o, indexer_kl(q, k, *indexer, tau, indices=indices, scale=scale, scores=scores, **options)

    return run


# Fused: the keys that a block of queries selects, as a mask, with the scores that chose them.


class Selected(NamedTuple):
    """active [B, C, HI, S]: σ of the heads' logits; scores I [B, C, S]; mask bool [B, C, S]."""

    active: Tensor
    scores: Tensor
    mask: Tensor


def select(
    q: Tensor, k: Tensor, w: Tensor, bias: Tensor, block: Block, rule: AdaptiveK, kind: str
) -> Selected:
    """Select for the block's queries q [B, C, HI, DI] among its keys k [B, S, DI] as `lightning_topk` does."""
    active = active_alike(q, k, bias, kind)
    scores = weighted_sum(active, w)
    counts = rule(variances(scores, block.visible, len(bias)))
    counts = torch.minimum(counts, block.visible.sum(-1))
    rank = best_first(ranks(scores, w, kind), block)
    mask = rank >= lowest_kept(rank, counts).unsqueeze(-1)
    # Weights below 0 rank anywhere.
    return Selected(active, scores, mask.logical_and_(block.visible))


# Fused: selection, attention and the loss of one block of queries after another.
#
# Every block computes the indexer's scores once, for the selection, the loss and its gradient, and attention's
# weights once, for its output and for the loss's target.


def blocks(q: Tensor) -> Iterator[Block]:
    """Blocks of the queries of q [B, T, H, K], forward and backward the same; one at a time, as each has a mask."""
    time = q.shape[1]
    size = block_size(q.shape[0] * q.shape[2] * time, q.device)
    return query_blocks(time, time, size, None, q.device)


def rows_of(block: Block, group: int) -> slice:
    """The block's rows of queries by KV head."""
    return slice(block.first * group, block.last * group)


def attend(
    q: Tensor, k: Tensor, v: Tensor, indexer: Indexer, rule: AdaptiveK, kind: str, scale: float, learns: bool
) -> tuple[Output, Tensor, Indexer | None]:
    """The output, the loss [] in nats, and where the indexer `learns` the loss's gradients, else None.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V]; kind: the scores, "sigmoid" or "relu".
    """
    kv_heads, group, time = k.shape[2], q.shape[2] // k.shape[2], q.shape[1]
    queries, values = by_kv_head(q * scale, kv_heads), keys_by_head(v)
    keys = keys_by_head(k).mT.contiguous()
    out = Output(
        q.new_empty(*q.shape[:3], v.shape[-1]),
        queries.new_empty(*queries.shape[:2], 1),
        torch.zeros(q.shape[0], time, math.ceil(time / 8), dtype=torch.uint8),
    )
    loss = _Loss(indexer, learns)
    for block in blocks(q):
        rows, seen = rows_of(block, group), slice(block.begin, block.end)
        selected = select(
            block.rows(indexer.q),
            block.keys(indexer.k),
            block.rows(indexer.w),
            indexer.bias,
            block,
            rule,
            kind,
        )
        bits = pack(selected.mask)
        block.rows(out.bits)[..., : bits.shape[-1]] = bits
        penalty = penalties(selected.mask, q.dtype)
        weights, out.lse[:, rows] = _weights(queries[:, rows], keys[:, :, seen], penalty, kv_heads)
        o = block.rows(out.o)
        o.copy_(by_query(torch.bmm(weights, values[:, seen]), o.shape, kv_heads))
        loss.add(block, selected, _mean_over_heads(weights, q.shape[0], group), penalty, kind)
    return out, loss.value, loss.gradients


def _weights(q: Tensor, k: Tensor, penalty: Tensor, kv_heads: int) -> tuple[Tensor, Tensor]:
    """Softmax over the selected keys [B·Hkv, C·G, S] and log-sum-exp [B·Hkv, C·G, 1] of q·k, k [B·Hkv, K, S]."""
    scores = torch.bmm(q, k)
    by_batch = scores.view(len(penalty), kv_heads, penalty.shape[1], -1, penalty.shape[2])
    by_batch += penalty[:, None, :, None]
    highest = scores.amax(-1, keepdim=True)
    weights = scores.softmax(-1)
    return weights, highest.sub_(weights.amax(-1, keepdim=True).log_())


def _mean_over_heads(weights: Tensor, batch: int, group: int) -> Tensor:
    """[B·Hkv, C·G, S] -> [B, C, S]. Heads are added one by one: PyTorch's sum over two outer axes is slow."""
    heads = weights.view(batch, -1, weights.shape[1] // group, group, weights.shape[2])
    total = heads[:, 0, :, 0].clone()
    for head in range(1, heads.shape[1] * group):
        total += heads[:, head // group, :, head % group]
    return total.div_(heads.shape[1] * group)


class _Loss:
    """mean_t KL(p_t ‖ softmax(τ·I_t)) and, if the indexer `learns`, its gradients, added up block by block.

    With z the logits of the indexer's heads and g = (π − p)/(B·T), π = softmax(τ·I): ∂I = τ·g, ∂w = Σ_s ∂I·σ(z),
    ∂z = ∂I·w·σ′(z), and ∂q, ∂k, ∂b follow by products with k, q and 1.
    """

    def __init__(self, indexer: Indexer, learns: bool) -> None:
        self.indexer, self.value = indexer, torch.zeros_like(indexer.tau)
        self.gradients = Indexer(*(torch.zeros_like(x) for x in indexer)) if learns else None
        self.weight = 1 / indexer.q.shape[:2].numel()
        self.scale = indexer.q.shape[-1] ** -0.5
        if learns:
            # Keys with a column of ones, whose product is the gradient of the bias; queries with their weight.
            self.keys = with_column(indexer.k, 1.0)
            self.queries = indexer.q * indexer.w.unsqueeze(-1)

    def add(self, block: Block, selected: Selected, target: Tensor, penalty: Tensor, kind: str) -> None:
        """Add a block's part: the target p [B, C, S] and the penalties of keys that it did not select."""
        target, penalty = target.to(selected.scores.dtype), penalty.to(selected.scores.dtype)
        logits = (selected.scores * self.indexer.tau).add_(penalty)
        logs = target.clamp_min(torch.finfo(target.dtype).tiny).log_().sub_(logits.log_softmax(-1))
        self.value += self.weight * logs.mul_(target).sum()
        if self.gradients is not None:
            slope = logits.softmax(-1).sub_(target).mul_(self.weight)
            self.gradients.tau.add_((slope * selected.scores).sum())
            self._indexer_gradients(block, selected.active, slope.mul_(self.indexer.tau).unsqueeze(2), kind)

    def _indexer_gradients(self, block: Block, active: Tensor, slope: Tensor, kind: str) -> None:
        grads, w = self.gradients, block.rows(self.indexer.w).unsqueeze(-1)
        block.rows(grads.w).copy_((active @ slope.mT).squeeze(-1))
        inner = torch.addcmul(active, active, active, value=-1) if kind == "sigmoid" else active.sign()
        inner = inner.mul_(slope).flatten(1, 2)
        by_query = (inner @ block.keys(self.keys)).view(*active.shape[:3], -1) * w
        block.rows(grads.q).copy_(by_query[..., :-1] * self.scale)
        grads.bias.add_(by_query[..., -1].sum((0, 1)))
        block.keys(grads.k).add_(inner.mT @ block.rows(self.queries).flatten(1, 2), alpha=self.scale)


# Fused: the gradients of attention, whose selection is known, a block of queries at a time.

FAINTEST = -60.0
"""Weights below e^−60 count as that: products of smaller ones may be denormal in fp32, which is slow."""


def attend_backward(
    grad: Tensor, out: Output, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k, v from that of o, grad [B, T, H, V].

    The weights are computed again as exp(q·k − lse), and ∂scores = w ⊙ (∂o·v − ∂o·o): both differences are one
    product's, of factors with one more column.
    """
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    d_out, o = by_kv_head(grad, kv_heads), by_kv_head(out.o, kv_heads)
    queries = by_kv_head(q * scale, kv_heads)
    keys, values = keys_by_head(k), keys_by_head(v)
    keys_t, values_t = (with_column(x, 1.0).mT.contiguous() for x in (keys, values))
    shifted = with_column(queries, -out.lse)
    centred = with_column(d_out, -(d_out * o).sum(-1, keepdim=True))
    dq, dk, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    for block in blocks(q):
        rows, seen = rows_of(block, group), slice(block.begin, block.end)
        mask = unpack(block.rows(out.bits), block.end, q.dtype)[:, None, :, None]
        weights = torch.bmm(shifted[:, rows], keys_t[:, :, seen]).clamp_(FAINTEST, 1.0).exp_()
        weights.view(len(q), kv_heads, mask.shape[2], group, -1).mul_(mask)
        d_scores = torch.bmm(centred[:, rows], values_t[:, :, seen]).mul_(weights)
        dq[:, rows] = torch.bmm(d_scores, keys[:, seen])
        dk[:, seen].baddbmm_(d_scores.mT, queries[:, rows])
        dv[:, seen].baddbmm_(weights.mT, d_out[:, rows])
    return (
        by_query(dq.mul_(scale), q.shape, kv_heads),
        keys_by_position(dk, kv_heads),
        keys_by_position(dv, kv_heads),
    )
