"""The exchange `fold`: linear recurrences composed along the ranks, so that each starts from its right state."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from zoo.context_parallel.gather import gather
from zoo.context_parallel.shard import Shard


def fold(transition: Tensor, increment: Tensor, shard: Shard) -> Tensor:
    """The state before a shard's first token, of the sequence that this token belongs to.

        forward     S^(r) = A^(r−1)·S^(r−1) + B^(r−1),  S = 0 where the sequence begins      all-gather of A and B
        backward    reduce-scatter

    increment B [B, ..., K, V]: what the shard's last sequence adds to a state, starting from zeros; transition A
    [B, ..., K, K], or [B, ..., K, 1] for decays alone (then A ⊙ S): what it makes of the state before it, 0 where that
    sequence begins in the shard. Returns [B, ..., K, V]. Bytes that a rank receives: (N − 1)·(A and B), whatever T is.
    """
    split = (transition.shape[-1], increment.shape[-1])
    gathered = gather(torch.cat([transition, increment], -1).unsqueeze(1), shard)
    # Zeros that hang on the gather: every rank has to reach its backward.
    state = gathered[:, :0].sum(1).split(split, -1)[1]
    with without_autocast(state):
        for rank in range(shard.begins // shard.length, shard.rank):
            a, b = gathered[:, rank].split(split, -1)
            state = (a * state if split[0] == 1 else a @ state) + b
    return state


def last_sequence(shard: Shard) -> slice:
    """Places in the shard of the last sequence's tokens: those that the next rank's state comes from."""
    return slice(shard.last, shard.length)


def sequence_spans_shard(shard: Shard) -> bool:
    """Return whether the shard's last sequence began before the shard, so that its state passes through."""
    return shard.continues and shard.last == 0
