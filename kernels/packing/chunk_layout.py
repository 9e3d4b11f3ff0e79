"""Boundaries, chunks and first chunks of packed sequences, as the one argument that chunked kernels take."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table, first_chunks


class ChunkLayout(NamedTuple):
    """Packed sequences on one token axis, cut into chunks that never cross a boundary.

    cu      int32 [N+1], where the sequences begin and end
    table   int32 [C, 2], sequence and number within it of every chunk; −1, −1 in idle rows
    firsts  int32 [N+1], the row of the table where each sequence begins, and where the busy rows end
    """

    cu: Tensor
    table: Tensor
    firsts: Tensor

    @staticmethod
    def of(x: Tensor, cu_seqlens: Tensor | None, size: int) -> ChunkLayout:
        """Cut the sequences of x [B, T, ...] into chunks of `size` tokens; without cu_seqlens there are B of them."""
        cu, table = boundaries(x, cu_seqlens), chunk_table(x, cu_seqlens, size)
        return ChunkLayout(cu, table, first_chunks(x, cu_seqlens, size))

    @property
    def sequences(self) -> int:
        """The number of sequences, N."""
        return len(self.cu) - 1

    @property
    def chunks(self) -> int:
        """The rows of the table, idle ones among them, C."""
        return len(self.table)
