"""Queries gathered by the block that they read, in tiles of equal height.

A block of keys is read by many queries. Copying the queries to it costs G·K numbers a pair of query and block
(G heads share a KV head), copying its l' keys to every query would cost l'·K.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes

HEIGHT = 32
"""Queries a tile: enough for a matrix product, few enough that little of the last tile of a block is empty."""

BUDGET = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Numbers that the scores of one stretch of queries should hold."""


def stretch(batch: int, heads: int, sizes: Sizes, width: int, device: torch.device) -> int:
    """How many queries are gathered at once."""
    each = batch * heads * sizes.n_select * max(sizes.select_size, width)
    return max(1, BUDGET.get(device.type, BUDGET["cuda"]) // each)


@dataclass(frozen=True)
class Tiles:
    """Pairs of a query and a block, sorted by block; N tiles of R places, P = B·Hkv·C queries (times KV heads).

    source  int64 [N·R], which query stands at a place; P where none does
    place   int64 [P, n], where a query's n blocks stand; N·R where it has fewer
    batch, head, block   int64 [N], what a tile's keys are
    """

    source: Tensor
    place: Tensor
    batch: Tensor
    head: Tensor
    block: Tensor
    height: int

    def spread(self, x: Tensor) -> Tensor:
        """Rows x [P, G, D] by tile: [N, R·G, D]; zeros where no query stands."""
        padded = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return padded.index_select(0, self.source).view(-1, self.height * x.shape[1], x.shape[2])

    def collect(self, x: Tensor, group: int) -> Tensor:
        """Σ over a query's blocks of rows x [N, R·G, D]: [P, G, D]."""
        flat = x.view(-1, group * x.shape[-1])
        padded = torch.cat([flat, flat.new_zeros(1, flat.shape[1])])
        return padded[self.place].sum(1).view(-1, group, x.shape[-1])

    def tokens(self, select_size: int, time: int) -> Tensor:
        """int64 [N, l'], the key tokens of a tile; past the end the last one."""
        token = self.block[:, None] * select_size + torch.arange(select_size, device=self.block.device)
        return token.clamp_max(time - 1)

    def keys(self, x: Tensor, select_size: int, dtype: torch.dtype) -> Tensor:
        """x [B, T, Hkv, D] by tile: [N, l', D]. A cache is not copied, only what is read of it."""
        tokens = self.tokens(select_size, x.shape[1])
        return x[self.batch[:, None], tokens, self.head[:, None]].to(dtype)


def make_tiles(chosen: Tensor, blocks: int) -> Tiles:
    """Tiles of the chosen blocks [B, C, Hkv, n] (int32, −1: none), ids below `blocks`."""
    batch, queries, heads, n = chosen.shape
    height = min(HEIGHT, queries)
    chosen = chosen.transpose(1, 2).to(torch.int64)
    used = chosen >= 0
    base = torch.arange(batch * heads, device=chosen.device).view(batch, heads, 1, 1) * blocks
    groups = batch * heads * blocks
    group = torch.where(used, base + chosen, groups)
    query = torch.arange(queries, device=chosen.device)[:, None].expand_as(group)
    member = torch.zeros(groups + 1, queries, dtype=torch.int32, device=chosen.device)
    member[group, query] = 1
    rank = member.cumsum(1, dtype=torch.int32)
    tiles = -(-rank[:-1, -1] // height)
    ends = tiles.cumsum(0)
    of_tile = torch.repeat_interleave(tiles)
    first = torch.cat([(ends - tiles) * height, ends[-1:] * height])
    total = of_tile.shape[0] * height
    place = torch.where(used, first[group] + rank[group, query] - 1, total).reshape(-1, n)
    rows = batch * heads * queries
    source = torch.full((total + 1,), rows, device=chosen.device)
    source[place] = torch.arange(rows, device=chosen.device)[:, None].expand_as(place)
    row = of_tile // blocks
    return Tiles(source[:-1], place, row // heads, row % heads, of_tile % blocks, height)
