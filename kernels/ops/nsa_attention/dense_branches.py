"""The dense branches, compression and window: attention in blocks of queries, each over one range of keys.

One sequence, or a batch of one length: q [B, Tq, H, K] with the scale in it, k [B, S, Hkv, K], v [B, S, Hkv, V].
The scores of a block of queries are not saved: the backward computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.query_blocks import block_size


@dataclass(frozen=True)
class QueryBlock:
    """Queries `here`, the keys `seen` that any of them sees, and masks for the keys that some of them do not see.

    masks  (columns of the seen keys, bool [C, columns], true where hidden)
    blind  the number of leading queries that see no key
    """

    here: slice
    seen: slice
    masks: tuple[tuple[slice, Tensor], ...] = ()
    blind: int = 0

    @property
    def queries(self) -> int:
        """The number of queries."""
        return self.here.stop - self.here.start

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Softmax over the visible keys [B, Hkv, C·G, S]; q [B, Hkv, C·G, K], k [B, Hkv, K, S]."""
        scores = q @ k
        by_query = scores.unflatten(2, (self.queries, -1))
        for columns, hidden in self.masks:
            by_query[..., columns].masked_fill_(hidden.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        weights.unflatten(2, (self.queries, -1))[:, :, : self.blind] = 0
        return weights


def compression_blocks(q: Tensor, time: int, sizes: Sizes) -> Iterator[QueryBlock]:
    """Blocks of queries over the compressed blocks that end at them or before; query i stands at i + time − Tq.

    q [B, Tq, H, K]; time: Tk.
    """
    for first, last, t in _queries(q, sizes.compressed(time), time):
        position = int(time - q.shape[1] + first)
        whole, seen = sizes.compressed(position + 1), sizes.compressed(position + last - first)
        ends = torch.arange(whole, seen, device=q.device) * sizes.stride + sizes.block_size - 1
        masks = ((slice(whole, seen), ends > t[:, None]),) if seen > whole else ()
        blind = min(last - first, max(0, sizes.block_size - 1 - position))
        yield QueryBlock(slice(first, last), slice(0, seen), masks, blind)


def window_blocks(q: Tensor, time: int, window: int) -> Iterator[QueryBlock]:
    """Blocks of queries over the last `window` tokens of each; query i stands at i + time − Tq.

    q [B, Tq, H, K]; time: the keys that there are; window ≥ 1.
    """
    for first, last, t in _queries(q, min(time, 2 * window), time):
        position, count = time - q.shape[1] + first, last - first
        begin, end = max(0, position - window + 1), position + count
        late, early = slice(end - begin - count, None), slice(0, min(count, end - begin))
        token = torch.arange(begin, end, device=q.device)
        masks = [(late, token[late] > t[:, None])] if count > 1 else []
        if end - begin > window:
            masks.append((early, token[early] <= t[:, None] - window))
        yield QueryBlock(slice(first, last), slice(begin, end), tuple(masks))


def _queries(q: Tensor, keys: int, time: int) -> Iterator[tuple[int, int, Tensor]]:
    """Blocks [first, last) of the queries of q, and their positions."""
    batch, queries, heads = q.shape[:3]
    size = block_size(batch * heads * max(1, keys), q.device)
    for first in range(0, queries, size):
        last = min(first + size, queries)
        yield first, last, torch.arange(first, last, device=q.device) + time - queries


def attend(
    blocks: Iterable[QueryBlock],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    on_weights: Callable[[QueryBlock, Tensor], None] | None = None,
) -> Tensor:
    """Attention [B, Tq, H, V] in q's dtype, of q [B, Tq, H, K] (scaled), k [B, S, Hkv, K] and v [B, S, Hkv, V].

    `on_weights` is called with every block and its weights [B, Hkv, C, G, S].
    """
    kv_heads, dtype = k.shape[2], q.dtype
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for part in blocks:
        keys, values = (x[:, part.seen].to(dtype).transpose(1, 2) for x in (k, v))
        weights = part.weights(grouped(q[:, part.here], kv_heads), keys.mT)
        out[:, part.here] = _ungrouped(weights @ values, part.queries)
        if on_weights is not None:
            on_weights(part, weights.unflatten(2, (part.queries, -1)))
    return out


def attend_backward(
    blocks: Iterable[QueryBlock], grad: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, S, Hkv, K] and v [B, S, Hkv, V] in their dtypes.

    grad, out [B, Tq, H, V]: the gradient of the output of `attend`, and that output; the weights are computed again.
    """
    kv_heads, dtype = k.shape[2], q.dtype
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    for part in blocks:
        queries, d_out, given = (grouped(x[:, part.here], kv_heads) for x in (q, grad, out))
        keys, values = (x[:, part.seen].to(dtype).transpose(1, 2) for x in (k, v))
        weights = part.weights(queries, keys.mT)
        d_scores = d_out @ values.mT
        d_scores.sub_((d_out * given).sum(-1, keepdim=True)).mul_(weights)
        dq[:, part.here] = _ungrouped(d_scores @ keys, part.queries)
        dk[:, part.seen] += (d_scores.mT @ queries).transpose(1, 2)
        dv[:, part.seen] += (weights.mT @ d_out).transpose(1, 2)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def grouped(x: Tensor, kv_heads: int) -> Tensor:
    """[B, C, H, D] -> [B, Hkv, C·G, D], the G heads of a KV head next to each other."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3)


def _ungrouped(x: Tensor, queries: int) -> Tensor:
    """[B, Hkv, C·G, D] -> [B, C, H, D]."""
    return x.unflatten(2, (queries, -1)).transpose(1, 2).flatten(2, 3)
