"""The token axis as chunks that each belong to one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.mesa.scan import scan
from kernels.packing.boundaries import ragged_rows, token_sequences
from kernels.packing.chunks import chunk_counts, most_chunks


@dataclass(frozen=True)
class Packing:
    """The places of packed tokens among n chunks of C rows; every sequence begins a chunk.

    source    int64 [n·C], the token of every row, T where there is none
    restore   int64 [T], the row of every token
    sequence  int64 [n], the sequence of every chunk
    opens     bool [n], whether a chunk is its sequence's first
    last      int64 [N], the last chunk of every sequence
    empty     bool [N], whether a sequence has no tokens
    """

    source: Tensor
    restore: Tensor
    sequence: Tensor
    opens: Tensor
    last: Tensor
    empty: Tensor

    @staticmethod
    def of(cu_seqlens: Tensor, tokens: int, chunk: int) -> Packing:
        """The layout of sequences whose bounds are cu_seqlens; as many chunks as the worst case needs.

        No shape depends on the bounds' values.
        """
        cu = cu_seqlens.long()
        chunks = chunk_counts(cu, chunk)
        ends = chunks.cumsum(0)
        sequence, number = ragged_rows(chunks, most_chunks(tokens, chunks.shape[0], chunk))
        row = torch.arange(chunk, device=cu.device)
        source = cu[sequence, None] + number[:, None] * chunk + row
        source = torch.where(source < cu[sequence + 1, None], source, tokens).flatten()
        owner = token_sequences(cu, tokens)
        restore = (ends - chunks)[owner] * chunk + torch.arange(tokens, device=cu.device) - cu[owner]
        return Packing(source, restore, sequence, number == 0, (ends - 1).clamp_min(0), chunks == 0)


@dataclass(frozen=True)
class Chunks:
    """Time as chunks: `split` to [B, H, n, C, ...], `join` back to [B, T, H, ...]."""

    tokens: int
    size: int
    packing: Packing | None

    @staticmethod
    def of(tokens: int, size: int, cu_seqlens: Tensor | None) -> Chunks:
        """The chunks of C = `size` tokens, or fewer if there are not so many, of T = `tokens` in all.

        cu_seqlens: [N+1] of packed sequences, or None.
        """
        size = max(1, min(size, tokens))
        return Chunks(tokens, size, None if cu_seqlens is None else Packing.of(cu_seqlens, tokens, size))

    def split(self, x: Tensor) -> Tensor:
        """x [B, T, H, ...] -> [B, H, n, C, ...]; rows without a token are 0."""
        packing, tail = self.packing, [0, 0] * (x.dim() - 2)
        if packing is None:
            x = F.pad(x, [*tail, 0, -self.tokens % self.size])
        else:
            x = F.pad(x, [*tail, 0, 1]).index_select(1, packing.source)
        return x.unflatten(1, (-1, self.size)).movedim(3, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """x [B, H, n, C, ...] -> [B, T, H, ...]."""
        x = x.movedim(1, 3).flatten(1, 2)
        return x[:, : self.tokens] if self.packing is None else x.index_select(1, self.packing.restore)

    def states(self, writes: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        """The states before every chunk [B, H, n, F], and those after every sequence [N, H, F].

        writes [B, H, n, F]: the sum that a chunk adds; gates [B, H, n]: its log decay; initial [N, H, F]
        """
        if self.packing is None:
            after = torch.cat([initial.unsqueeze(2), scan(writes, gates, initial)], 2)
            return after[:, :, :-1], after[:, :, -1]
        opens = self.packing.opens
        opening = initial.index_select(0, self.packing.sequence).transpose(0, 1).unsqueeze(0)
        begun = torch.where(opens[:, None], writes + gates.exp().unsqueeze(-1) * opening, writes)
        after = scan(begun, torch.where(opens, -torch.inf, gates), torch.zeros_like(initial[:1]))
        before = torch.where(opens[:, None], opening, F.pad(after, (0, 0, 1, 0))[:, :, :-1])
        ends = after[0].transpose(0, 1).index_select(0, self.packing.last)
        return before, torch.where(self.packing.empty[:, None, None], initial, ends)
