"""Parts of a mixture of experts: tokens in the order of their experts, and balancing by routing biases."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.modules.step_buffer import StepBuffer


class LoadBalance(StepBuffer):
    """Routing biases that even out the experts' loads without a loss.

        b_e ← b_e + rate · sign(mean count − count_e)     once an optimiser step

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
        """Move the biases by what was counted."""
        super().set(step, total)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.counts)
        loads = self.counts.to(self.bias.dtype)
        self.bias += self.rate * torch.sign(loads.mean() - loads)
        self.counts.zero_()


def order_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort assignments by expert, earlier ones first among equals.

    chosen   int64 [..., k], the experts of every token
    returns  order int64 [M], M = all assignments: which one stands at every place; places int64 [M], its
             inverse; counts int64 [experts]. Shapes follow from the argument's, so that it can be traced
    """
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    rank = torch.arange(flat.shape[0], device=flat.device)
    places = torch.empty_like(order).scatter(0, order, rank)
    ones = torch.ones_like(flat)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, ones)
    return order, places, counts
