"""The selection branch, one stretch of queries after another, each as tiles of queries and blocks of keys.

One sequence, or a batch of one length: q [B, Tq, H, K] with the scale in it, k [B, Tk, Hkv, K], v [B, Tk, Hkv, V],
chosen int32 [B, Tq, Hkv, n]; query i stands at position i + Tk − Tq. Work and memory are T·n·l'.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.tiles import Tiles, make_tiles, stretches


class Blocks:
    """Keys and values by block, [B·Hkv·J, l', D], the last block of a sequence filled up with zeros."""

    def __init__(self, k: Tensor, v: Tensor, sizes: Sizes, dtype: torch.dtype) -> None:
        self.size, self.count = sizes.select_size, sizes.selectable(k.shape[1])
        self.keys, self.values = self._cut(k.to(dtype)), self._cut(v.to(dtype))
        self.keys_t, self.values_t = (x.mT.contiguous() for x in (self.keys, self.values))

    def _cut(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, 0, self.count * self.size - x.shape[1]))
        return x.transpose(1, 2).unflatten(2, (self.count, self.size)).flatten(0, 2)

    def whole(self, x: Tensor, like: Tensor) -> Tensor:
        """Join blocks [B·Hkv·J, l', D] to [B, T, Hkv, D], in the dtype of `like`."""
        x = x.unflatten(0, (like.shape[0], like.shape[2], -1)).flatten(2, 3)
        return x[:, :, : like.shape[1]].transpose(1, 2).to(like.dtype)


def gathered(
    q: Tensor, k: Tensor, chosen: Tensor, sizes: Sizes
) -> Iterator[tuple[tuple[slice, slice], Tiles, Tensor]]:
    """Yield (sequences and queries, their tiles, the position of every query [P + 1])."""
    batch, queries, heads, width = q.shape
    numbers = heads * sizes.n_select * max(sizes.select_size, width)
    for here in stretches(batch, queries, numbers, q.device):
        position = here[1].start + k.shape[1] - queries
        blocks = sizes.selectable(k.shape[1])
        tiles = make_tiles(chosen[here], blocks, here[0].start, position, sizes)
        count = here[1].stop - here[1].start
        t = torch.arange(tiles.place.shape[0] + 1, device=q.device) % count + position
        t[-1] = k.shape[1]  # a place without a query sees everything, so that its row is finite
        yield here, tiles, t


def by_head(x: Tensor, kv_heads: int) -> Tensor:
    """Rows by KV head and query: [B, C, H, D] -> [B·Hkv·C + 1, G, D], the last row 0."""
    x = x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(0, 2)
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


def by_query(x: Tensor, shape: torch.Size, kv_heads: int) -> Tensor:
    """The inverse of `by_head` but for its last row: [B·Hkv·C, G, D] -> [B, C, H, D], shape [B, C, …]."""
    return x.unflatten(0, (shape[0], kv_heads, shape[1])).transpose(1, 2).flatten(2, 3)


def scores(q: Tensor, blocks: Blocks, tiles: Tiles, part: slice, t: Tensor) -> Tensor:
    """Scores [n, R·G, l'] of the queries q [n, R·G, K] of tiles and the keys of their blocks; −∞ after the query."""
    row = tiles.row[part]
    raw = torch.bmm(q, blocks.keys_t.index_select(0, row))
    edge = tiles.edge[part].nonzero()[:, 0]
    begin = (row[edge] % blocks.count * blocks.size)[:, None, None]
    hidden = begin + torch.arange(blocks.size, device=t.device) > t[tiles.source[part][edge]].unsqueeze(-1)
    cut = raw[edge].unflatten(1, (hidden.shape[1], -1)).masked_fill_(hidden.unsqueeze(2), -torch.inf)
    return raw.index_copy_(0, edge, cut.flatten(1, 2))


def selected_forward(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Attention o [B, Tq, H, V] to the chosen blocks and log-sum-exps [B, Tq, H]."""
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])
    blocks = Blocks(k, v, sizes, q.dtype)
    for here, tiles, t in gathered(q, k, chosen, sizes):
        queries = by_head(q[here], kv_heads)
        rows, top, total = (tiles.places(q, group, *x) for x in ((v.shape[-1], 0), (1, -torch.inf), (1, 0)))
        for part in tiles.parts(group, blocks.size):
            raw = scores(tiles.spread(queries, part), blocks, tiles, part, t)
            highest = raw.amax(-1, keepdim=True)
            weights = raw.sub_(highest).exp_()
            tiles.part_of(top, part).copy_(highest)
            tiles.part_of(total, part).copy_(weights.sum(-1, keepdim=True))
            torch.bmm(weights, blocks.values.index_select(0, tiles.row[part]), out=tiles.part_of(rows, part))
        tops, totals = top[..., 0][tiles.place], total[..., 0][tiles.place]
        highest = tops.amax(1)
        share = tops.sub_(highest.unsqueeze(1)).exp_()
        whole = (share * totals).sum(1)
        found = tiles.collect(rows, share.div_(whole.unsqueeze(1)))
        out[here] = by_query(found, q[here].shape, kv_heads)
        lse[here] = by_query((highest + whole.log()).unsqueeze(-1), q[here].shape, kv_heads)[..., 0]
    return out, lse


def selected_backward(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, Tk, Hkv, K] and v [B, Tk, Hkv, V]; the weights are computed again.

    grad, out [B, Tq, H, V] and lse [B, Tq, H]: the gradient and the results of `selected_forward`; chosen int32
    [B, Tq, Hkv, n], the selected blocks.
    """
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    blocks = Blocks(k, v, sizes, q.dtype)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(blocks.keys), torch.zeros_like(blocks.values)
    delta = (grad * out).sum(-1)
    for here, tiles, t in gathered(q, k, chosen, sizes):
        inputs = [by_head(x[here], kv_heads) for x in (q, grad, torch.stack([lse, delta], -1))]
        rows = tiles.places(q, group, q.shape[-1], 0)
        for part in tiles.parts(group, blocks.size):
            row = tiles.row[part]
            queries, d_out, numbers = (tiles.spread(x, part) for x in inputs)
            shift, less = numbers.split(1, -1)
            weights = scores(queries, blocks, tiles, part, t).sub_(shift).exp_()
            d_scores = torch.bmm(d_out, blocks.values_t.index_select(0, row)).sub_(less).mul_(weights)
            torch.bmm(d_scores, blocks.keys.index_select(0, row), out=tiles.part_of(rows, part))
            dk.index_add_(0, row, torch.bmm(d_scores.mT, queries))
            dv.index_add_(0, row, torch.bmm(weights.mT, d_out))
        dq[here] = by_query(tiles.collect(rows), q[here].shape, kv_heads)
    return dq, blocks.whole(dk, k), blocks.whole(dv, v)
