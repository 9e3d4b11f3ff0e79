"""A rank's shard of a batch: which tokens are its own, and the pieces of documents that it holds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.context import Context


class Piece(NamedTuple):
    """Queries of a shard, and all keys that they may see, the last of which is the last query's own.

    queries     places in the shard
    keys        places in the whole batch's axis of time
    cu_seqlens  int32 [n+1], n whole documents, which queries and keys then both are; None: one sequence a row
    share       of the whole batch's mean over sequences of the mean over tokens
    """

    queries: slice
    keys: slice
    cu_seqlens: Tensor | None
    share: float


@dataclasses.dataclass(frozen=True)
class Shard:
    """Tokens [start, stop) of every row of the batch, which this rank of `group` holds; all shards are of one length.

    whole       the context of the whole batch
    begins      where the sequence of the first own token begins, on the whole axis
    last        where the part of the last own sequence begins, in the shard
    cu_seqlens  int32 [n+1], boundaries of the own parts of the n documents that the shard touches, or None
    pieces      the shard's queries in order: the rest of a document begun before, whole documents, the start of one
    """

    group: Any
    rank: int
    size: int
    start: int
    stop: int
    whole: Context
    begins: int
    last: int
    cu_seqlens: Tensor | None
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(whole: Context, group: Any = None) -> Shard:
        """This rank's shard of a batch; group: None for all processes. Raises UserError where it cannot be cut."""
        if not (dist.is_available() and dist.is_initialized()):
            raise UserError(
                "context parallelism needs a process group: start with torchrun and call "
                "torch.distributed.init_process_group first"
            )
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        time = whole.positions.shape[1]
        if time % size:
            raise UserError(
                f"{time} tokens do not cut into {size} equal shards; take a length that {size} divides"
            )
        if whole.probe is not None:
            raise UserError("a probe needs whole sequences; look inside without context parallelism")
        length = time // size
        start, stop = rank * length, (rank + 1) * length
        if whole.cu_seqlens is None:
            piece = Piece(slice(0, length), slice(0, stop), None, 1 / size)
            return Shard(group, rank, size, start, stop, whole, 0, 0, None, (piece,))
        ends = whole.cu_seqlens.tolist()
        local_ends = [0, *(end - start for end in ends if start < end < stop), length]
        local = whole.cu_seqlens.new_tensor(local_ends)
        begins = max(end for end in ends if end <= start)
        pieces = tuple(_pieces(ends, start, stop, whole.cu_seqlens))
        return Shard(group, rank, size, start, stop, whole, begins, local_ends[-2], local, pieces)

    @property
    def length(self) -> int:
        """Tokens of the shard."""
        return self.stop - self.start

    @property
    def continues(self) -> bool:
        """Return whether the first own token's sequence began on a rank before."""
        return self.begins < self.start

    def check(self, tokens: Tensor) -> None:
        """Raise UserError unless tokens [B, T/N] are as many as the shard's."""
        wanted = (self.whole.positions.shape[0], self.length)
        if tokens.shape != wanted:
            raise UserError(
                f"rank {self.rank} of {self.size} computes on tokens {wanted}, its own, not on {tuple(tokens.shape)}; "
                "give the model ctx.shard.own(tokens)"
            )

    def own(self, x: Tensor) -> Tensor:
        """The own part of x [B, T, ...], a view [B, T/N, ...]."""
        return x[:, self.start : self.stop]

    def for_each(self, first: Tensor) -> Tensor:
        """A state of every sequence in the shard from that of the first, [B, ...]: zeros for documents begun here."""
        if self.cu_seqlens is None:
            return first
        others = first.new_zeros(len(self.cu_seqlens) - 2, *first.shape[1:])
        return torch.cat([first, others])


def _pieces(ends: list[int], start: int, stop: int, like: Tensor) -> Iterator[Piece]:
    """The pieces of tokens [start, stop) of packed documents with these boundaries."""
    count = len(ends) - 1
    documents = [(a, b) for a, b in itertools.pairwise(ends) if b > start and a < stop]
    for complete, run in itertools.groupby(documents, lambda d: start <= d[0] and d[1] <= stop):
        run = list(run)
        if not complete:
            yield from (_part(a, b, start, stop, count) for a, b in run)
            continue
        first, last = run[0][0], run[-1][1]
        cu_seqlens = like.new_tensor([0, *(b - first for _, b in run)])
        share = len(run) / count
        yield Piece(slice(first - start, last - start), slice(first, last), cu_seqlens, share)


def _part(a: int, b: int, start: int, stop: int, documents: int) -> Piece:
    """The part in [start, stop) of a document [a, b) that goes beyond it."""
    first, last = max(a, start), min(b, stop)
    return Piece(
        slice(first - start, last - start), slice(a, last), None, (last - first) / ((b - a) * documents)
    )
