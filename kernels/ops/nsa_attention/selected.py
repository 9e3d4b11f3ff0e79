"""The selection branch, one stretch of queries after another, each as tiles of queries and blocks of keys.

One sequence, or a batch of one length: q [B, Tq, H, K] with the scale in it, k [B, Tk, Hkv, K], v [B, Tk, Hkv, V],
chosen int32 [B, Tq, Hkv, n]; query i stands at position i + Tk − Tq. Work and memory are T·n·l'.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.tiles import Tiles, make_tiles, stretch


def stretches(q: Tensor, k: Tensor, chosen: Tensor, sizes: Sizes) -> Iterator[tuple[slice, Tiles, Tensor]]:
    """(queries, their tiles, which scores are hidden [N, R, l'])."""
    queries, time = q.shape[1], k.shape[1]
    size = stretch(q.shape[0], q.shape[2], sizes, q.shape[3], q.device)
    for first in range(0, queries, size):
        here = slice(first, min(first + size, queries))
        tiles = make_tiles(chosen[:, here], sizes.selectable(time))
        count = here.stop - first
        rows = q.shape[0] * k.shape[2] * count
        # A place without a query stands past all tokens, so that its row is finite.
        t = tiles.source % count + first + time - queries
        t = t.masked_fill(tiles.source == rows, time).view(-1, tiles.height, 1)
        begin = (tiles.block * sizes.select_size)[:, None, None]
        token = begin + torch.arange(sizes.select_size, device=q.device)
        yield here, tiles, token > t


def by_head(x: Tensor, kv_heads: int) -> Tensor:
    """[B, C, H, D] -> [B·Hkv·C, G, D]."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(0, 2)


def by_query(x: Tensor, batch: int, kv_heads: int) -> Tensor:
    """[B·Hkv·C, G, D] -> [B, C, H, D]."""
    return x.unflatten(0, (batch, kv_heads, -1)).transpose(1, 2).flatten(2, 3)


def scores(q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
    """[N, R·G, l'] of tiles q [N, R·G, K] and k [N, l', K]."""
    raw = torch.bmm(q, k.mT)
    raw.unflatten(1, (hidden.shape[1], -1)).masked_fill_(hidden.unsqueeze(2), -torch.inf)
    return raw


def selected_forward(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """o [B, Tq, H, V] and the log-sum-exps [B, Tq, H]."""
    batch, kv_heads, group = q.shape[0], k.shape[2], q.shape[2] // k.shape[2]
    out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])
    for here, tiles, hidden in stretches(q, k, chosen, sizes):
        raw = scores(
            tiles.spread(by_head(q[:, here], kv_heads)), tiles.keys(k, sizes.select_size, q.dtype), hidden
        )
        highest = raw.amax(-1).view(-1, group)
        lowest = highest.new_full((1, group), -torch.inf)
        top = torch.cat([highest, lowest])[tiles.place].amax(1)
        weights = raw.sub_(tiles.spread(top.unsqueeze(-1))).exp_()
        total = tiles.collect(weights.sum(-1, keepdim=True), group)
        rows = tiles.collect(torch.bmm(weights, tiles.keys(v, sizes.select_size, q.dtype)), group) / total
        out[:, here] = by_query(rows, batch, kv_heads)
        lse[:, here] = by_query(top.unsqueeze(-1) + total.log(), batch, kv_heads)[..., 0]
    return out, lse


def selected_backward(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; the weights are computed again."""
    batch, kv_heads, group = q.shape[0], k.shape[2], q.shape[2] // k.shape[2]
    dq = torch.empty_like(q)
    blocks = sizes.selectable(k.shape[1])
    dk, dv = (q.new_zeros(batch * kv_heads * blocks, sizes.select_size * x.shape[-1]) for x in (k, v))
    delta = (grad * out).sum(-1, keepdim=True)
    for here, tiles, hidden in stretches(q, k, chosen, sizes):
        queries, d_out, shift, less = (
            tiles.spread(by_head(x[:, here], kv_heads)) for x in (q, grad, lse.unsqueeze(-1), delta)
        )
        keys, values = (tiles.keys(x, sizes.select_size, q.dtype) for x in (k, v))
        weights = scores(queries, keys, hidden).sub_(shift).exp_()
        d_scores = torch.bmm(d_out, values.mT).sub_(less).mul_(weights)
        dq[:, here] = by_query(tiles.collect(torch.bmm(d_scores, keys), group), batch, kv_heads)
        row = (tiles.batch * kv_heads + tiles.head) * blocks + tiles.block
        dk.index_add_(0, row, torch.bmm(d_scores.mT, queries).flatten(1))
        dv.index_add_(0, row, torch.bmm(weights.mT, d_out).flatten(1))
    return dq, _tokens(dk, k, blocks), _tokens(dv, v, blocks)


def _tokens(x: Tensor, like: Tensor, blocks: int) -> Tensor:
    """[B·Hkv·J, l'·D] -> [B, T, Hkv, D]."""
    batch, time, heads, width = like.shape
    x = x.view(batch, heads, blocks, -1, width).flatten(2, 3)
    return x[:, :, :time].transpose(1, 2).to(like.dtype)
