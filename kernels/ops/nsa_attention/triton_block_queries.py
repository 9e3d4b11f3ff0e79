"""The queries of each block: the lists of chosen blocks, inverted by a sort."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.grouping import sort_by_group
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table, first_chunks

SPLIT = 2048
"""Queries of a block's list that one program walks over; the average list is n·l' long."""


@dataclass(frozen=True)
class BlockQueries:
    """The queries that chose each block. An owner is a pair (block, KV head): number block · Hkv + head.

    queries     int32 [E]: the queries of all owners' lists, one list after another
    offsets     [owners + 1]: where each begins
    parts       int32 [P, 2]: owner and number of every part of SPLIT queries, as `chunk_table` has them
    first_part  int32 [owners + 1]: where the parts of an owner begin
    blocks      int32 [blocks, 2]: sequence and number of every block
    first_key   int32 [N+1]: where the sequences begin
    split       queries of a part
    """

    queries: Tensor
    offsets: Tensor
    parts: Tensor
    first_part: Tensor
    blocks: Tensor
    first_key: Tensor
    split: int


def block_queries(chosen: Tensor, k: Tensor, select_size: int, cu_seqlens: Tensor | None) -> BlockQueries:
    """Invert the lists chosen [B, Tq, Hkv, n] of first keys, −1 where there is none. Nothing waits for the GPU."""
    tokens, heads = k.shape[0] * k.shape[1], k.shape[2]
    first_key, blocks = boundaries(k, cu_seqlens), chunk_table(k, cu_seqlens, select_size)
    head = torch.arange(heads, device=k.device)
    begin = chosen.flatten(0, 1).to(torch.int64)
    begin = torch.where(begin < 0, tokens + 1, begin)
    by_block = sort_by_group((begin * heads + head[:, None]).flatten(), (tokens + 2) * heads)
    query = by_block.order // (heads * chosen.shape[-1])
    sequence, place = blocks.to(torch.int64).unbind(1)
    begin = torch.where(sequence < 0, tokens, first_key[sequence.clamp_min(0)] + place * select_size)
    owners = (begin[:, None] * heads + head).flatten()
    owners = torch.cat([owners, owners.new_full((1,), (tokens + 1) * heads)])
    offsets, entries = by_block.offsets[owners], query[None]
    parts, first_part = chunk_table(entries, offsets, SPLIT), first_chunks(entries, offsets, SPLIT)
    return BlockQueries(query.to(torch.int32), offsets, parts, first_part, blocks, first_key, SPLIT)
