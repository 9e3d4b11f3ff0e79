"""Selection, attention and the indexer's loss of one block of queries after another.

Every block computes the indexer's scores once, for the selection, the loss and its gradient, and attention's weights
once, for its output and for the loss's target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels import masks
from kernels.ops.indexed_attention import layout
from kernels.ops.indexed_attention.fused_tensors import Indexer, Output
from kernels.ops.indexed_attention.selection import Selected, select
from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.query_blocks import Block, block_size, query_blocks


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
    queries, values = layout.by_kv_head(q * scale, kv_heads), layout.keys_by_head(v)
    keys = layout.keys_by_head(k).mT.contiguous()
    out = Output(
        q.new_empty(*q.shape[:3], v.shape[-1]),
        queries.new_empty(*queries.shape[:2], 1),
        torch.zeros(q.shape[0], time, math.ceil(time / 8), dtype=torch.uint8),
    )
    loss = _Loss(indexer, learns)
    for block in blocks(q):
        rows, seen = rows_of(block, group), slice(block.begin, block.end)
        found = select(
            block.rows(indexer.q),
            block.keys(indexer.k),
            block.rows(indexer.w),
            indexer.bias,
            block,
            rule,
            kind,
        )
        bits = masks.pack(found.mask)
        block.rows(out.bits)[..., : bits.shape[-1]] = bits
        penalty = masks.penalties(found.mask, q.dtype)
        weights, out.lse[:, rows] = _weights(queries[:, rows], keys[:, :, seen], penalty, kv_heads)
        o = block.rows(out.o)
        o.copy_(layout.by_query(torch.bmm(weights, values[:, seen]), o.shape, kv_heads))
        loss.add(block, found, _mean_over_heads(weights, q.shape[0], group), penalty, kind)
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
        if (
            learns
        ):  # keys with a column of ones, whose product is the gradient of the bias; queries with their weight
            self.keys = layout.with_column(indexer.k, 1.0)
            self.queries = indexer.q * indexer.w.unsqueeze(-1)

    def add(self, block: Block, found: Selected, target: Tensor, penalty: Tensor, kind: str) -> None:
        """Add a block's part: the target p [B, C, S] and the penalties of keys that it did not select."""
        target, penalty = target.to(found.scores.dtype), penalty.to(found.scores.dtype)
        logits = (found.scores * self.indexer.tau).add_(penalty)
        logs = target.clamp_min(torch.finfo(target.dtype).tiny).log_().sub_(logits.log_softmax(-1))
        self.value += self.weight * logs.mul_(target).sum()
        if self.gradients is not None:
            slope = logits.softmax(-1).sub_(target).mul_(self.weight)
            self.gradients.tau.add_((slope * found.scores).sum())
            self._indexer_gradients(block, found.active, slope.mul_(self.indexer.tau).unsqueeze(2), kind)

    def _indexer_gradients(self, block: Block, active: Tensor, slope: Tensor, kind: str) -> None:
        grads, w = self.gradients, block.rows(self.indexer.w).unsqueeze(-1)
        block.rows(grads.w).copy_((active @ slope.mT).squeeze(-1))
        inner = torch.addcmul(active, active, active, value=-1) if kind == "sigmoid" else active.sign()
        inner = inner.mul_(slope).flatten(1, 2)
        by_query = (inner @ block.keys(self.keys)).view(*active.shape[:3], -1) * w
        block.rows(grads.q).copy_(by_query[..., :-1] * self.scale)
        grads.bias.add_(by_query[..., -1].sum((0, 1)))
        block.keys(grads.k).add_(inner.mT @ block.rows(self.queries).flatten(1, 2), alpha=self.scale)
