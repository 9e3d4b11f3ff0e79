"""The training step as a buffer of blocks whose maths changes during training; a part of every checkpoint."""

from __future__ import annotations

import torch
from torch import nn


class StepBuffer(nn.Module):
    """step: optimiser steps done, int64 []; total: how many the training will have, 0 where unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def set(self, step: int, total: int) -> None:
        """Set both; called when training starts, and in every optimiser step after the gradients, before the update."""
        self.step.fill_(step)
        self.total.fill_(total)


def set_step(model: nn.Module, step: int, total: int = 0) -> None:
    """Set in every StepBuffer of a model how many optimiser steps are done, and how many there will be."""
    for module in model.modules():
        if isinstance(module, StepBuffer):
            module.set(step, total)
