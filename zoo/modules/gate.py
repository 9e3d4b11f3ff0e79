"""The sigmoid gate of gated attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Gate(nn.Linear):
    """σ(x·W + b) with b = 0.5 and W Xavier-uniform of gain 0.1, so that a new gate is nearly constant."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=True)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw W from the generator and set b."""
        nn.init.xavier_uniform_(self.weight, gain=0.1, generator=generator)
        nn.init.constant_(self.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> numbers in (0, 1), [..., out]."""
        return torch.sigmoid(self.logits(x))

    def logits(self, x: Tensor) -> Tensor:
        """x·W + b, for an operation that takes the sigmoid itself."""
        return super().forward(x)
