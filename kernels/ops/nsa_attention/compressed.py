"""The compression branch in blocks of queries, and the selection that its weights decide.

One sequence, or a batch of one length: q [B, Tq, H, K], compressed k [B, M, Hkv, K], v [B, M, Hkv, V]; query i
stands at position i + time − Tq. Scores are T × T/d; a block of queries holds its own and keeps none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.blocks import block_size
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.select import choose


def grouped(x: Tensor, kv_heads: int) -> Tensor:
    """[B, C, H, D] -> [B, Hkv, C·G, D], the G heads of a KV head beside each other."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3)


def ungrouped(x: Tensor, queries: int) -> Tensor:
    """[B, Hkv, C·G, D] -> [B, C, H, D]."""
    return x.unflatten(2, (queries, -1)).transpose(1, 2).flatten(2, 3)


@dataclass(frozen=True)
class Rows:
    """Queries [first, last), which stand at `position` … and see `seen` compressed blocks at most.

    The first `blind` of them see none; `whole` blocks are seen by all of them.
    """

    first: int
    last: int
    position: int
    sizes: Sizes

    @property
    def queries(self) -> int:
        return self.last - self.first

    @property
    def seen(self) -> int:
        return self.sizes.compressed(self.position + self.queries)

    @property
    def whole(self) -> int:
        return self.sizes.compressed(self.position + 1)

    @property
    def blind(self) -> int:
        return min(self.queries, max(0, self.sizes.block_size - 1 - self.position))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """softmax over visible blocks, [B, Hkv, C·G, M']; q [B, Hkv, C·G, K], k [B, Hkv, K, M']."""
        scores = q @ k
        group = q.shape[2] // self.queries
        if self.seen > self.whole:
            t = torch.arange(self.position, self.position + self.queries, device=q.device)
            block = torch.arange(self.whole, self.seen, device=q.device)
            hidden = block * self.sizes.stride + self.sizes.block_size - 1 > t[:, None]
            hidden = hidden.repeat_interleave(group, 0)
            scores[..., self.whole :].masked_fill_(hidden, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        weights[:, :, : self.blind * group] = 0
        return weights


def rows(q: Tensor, k: Tensor, time: int, sizes: Sizes) -> Iterator[Rows]:
    """All queries in blocks."""
    batch, queries, heads = q.shape[:3]
    size = block_size(batch * heads * max(1, k.shape[1]), q.device)
    for first in range(0, queries, size):
        yield Rows(first, min(first + size, queries), time - queries + first, sizes)


def compressed_forward(q: Tensor, k: Tensor, v: Tensor, time: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """o [B, Tq, H, V] and the selected blocks, int32 [B, Tq, Hkv, n], −1 where unused. q holds the scale."""
    batch, queries, kv_heads = *q.shape[:2], k.shape[2]
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    chosen = torch.empty(batch, queries, kv_heads, sizes.n_select, dtype=torch.int32, device=q.device)
    keys, values = k.permute(0, 2, 3, 1), v.transpose(1, 2)
    for part in rows(q, k, time, sizes):
        here, seen = slice(part.first, part.last), part.seen
        weights = part.weights(grouped(q[:, here], kv_heads), keys[..., :seen])
        out[:, here] = ungrouped(weights @ values[:, :, :seen], part.queries)
        t = torch.arange(part.position, part.position + part.queries, device=q.device)
        mean = weights.unflatten(2, (part.queries, -1)).mean(3)
        last = part.position + part.queries - 1
        chosen[:, here] = choose(mean, t, last, sizes).transpose(1, 2)
    return out, chosen


def compressed_backward(
    grad: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor, time: int, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; the weights are computed again."""
    kv_heads = k.shape[2]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    keys, values = k.transpose(1, 2), v.permute(0, 2, 3, 1)
    for part in rows(q, k, time, sizes):
        here, seen = slice(part.first, part.last), part.seen
        if seen == 0:
            continue
        queries, d_out, given = (grouped(x[:, here], kv_heads) for x in (q, grad, out))
        weights = part.weights(queries, keys[:, :, :seen].mT)
        d_scores = d_out @ values[..., :seen]
        d_scores.sub_((d_out * given).sum(-1, keepdim=True)).mul_(weights)
        dq[:, here] = ungrouped(d_scores @ keys[:, :, :seen], part.queries)
        dk[:, :seen] += (d_scores.mT @ queries).transpose(1, 2)
        dv[:, :seen] += (weights.mT @ d_out).transpose(1, 2)
    return dq, dk, dv
