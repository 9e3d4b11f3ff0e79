"""Sigmoid gates: of gated attention, and of forgetting."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.modules.linear import fp32_linear


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


class ForgetGate(nn.Linear):
    """log σ(x·W + b) ≤ 0, the logarithm of what a token leaves of what was before, in at least fp32.

    b is `start` before training, the forget bias of LSTMs: with 0 a new layer halves its past at every token, with 4
    it keeps 98 % of it.
    """

    def __init__(self, width: int, out: int, start: float) -> None:
        super().__init__(width, out, bias=True)
        self.start = start

    def init_weights(self, generator: torch.Generator) -> None:
        """Set b; W is a projection's, drawn with the others."""
        nn.init.constant_(self.bias, self.start)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> logarithms [..., out]."""
        return F.logsigmoid(fp32_linear(x, self.weight) + self.bias)
