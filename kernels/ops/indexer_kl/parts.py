"""The pairs of tokens in the indexer's loss, a block of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.sparse_attention.select import gather, selected_mask, shifted, spans
from kernels.query_blocks import block_size, query_blocks


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
