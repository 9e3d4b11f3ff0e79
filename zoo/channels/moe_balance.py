"""Parts of a mixture of experts: sorting tokens by expert, and load balancing by routing biases."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.interfaces import StepBuffer


class LoadBalance(StepBuffer):
    """Routing biases that even out the experts' loads without a loss.

        b_e ← b_e + rate · sign(mean count − count_e)     once per optimiser step

    bias    fp32 [E], added to affinities to choose experts, never to weigh them
    counts  int64 [E], assignments since the last optimiser step, over all its micro-batches

    Both are part of checkpoints. Counts are added up over all processes, so that all hold the same biases.
    Source: auxiliary-loss-free load balancing (arXiv:2408.15664), algorithm 1.
    """

    def __init__(self, experts: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counts", torch.zeros(experts, dtype=torch.int64))

    def count(self, counts: Tensor) -> None:
        """Add the assignments [E] of a micro-batch."""
        self.counts += counts

    def set(self, step: int, total: int) -> None:
        """Update the biases from the counts of all processes, then reset the counts."""
        super().set(step, total)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.counts)
        loads = self.counts.to(self.bias.dtype)
        self.bias += self.rate * torch.sign(loads.mean() - loads)
        self.counts.zero_()


def order_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort assignments by expert, stably.

    chosen   int64 [..., k], the experts of every token
    returns  order int64 [M], M = all assignments: the assignment at every place of the sorted list; places
             int64 [M], its inverse; counts int64 [experts]. Shapes follow from the argument's: it can be traced
    """
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    rank = torch.arange(flat.shape[0], device=flat.device)
    places = torch.empty_like(order).scatter(0, order, rank)
    ones = torch.ones_like(flat)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, ones)
    return order, places, counts
