"""The keys that a block of queries selects, as a mask, with the indexer's scores that chose them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.ops.lightning_topk.partition import lowest_kept
from kernels.ops.lightning_topk.scores import (
    active_alike,
    best_first,
    ranks,
    variances,
    weighted_sum,
)
from kernels.query_blocks import Block


class Selected(NamedTuple):
    """active [B, C, HI, S]: σ of the heads' logits; scores I [B, C, S]; mask bool [B, C, S]."""

    active: Tensor
    scores: Tensor
    mask: Tensor


def select(
    q: Tensor, k: Tensor, w: Tensor, bias: Tensor, block: Block, rule: AdaptiveK, kind: str
) -> Selected:
    """Select for the block's queries q [B, C, HI, DI] among its keys k [B, S, DI] as `lightning_topk` does."""
    active = active_alike(q, k, bias, kind)
    scores = weighted_sum(active, w)
    counts = rule(variances(scores, block.visible, len(bias)))
    counts = torch.minimum(counts, block.visible.sum(-1))
    rank = best_first(ranks(scores, w, kind), block)
    mask = rank >= lowest_kept(rank, counts).unsqueeze(-1)
    # Weights below 0 rank anywhere.
    return Selected(active, scores, mask.logical_and_(block.visible))
