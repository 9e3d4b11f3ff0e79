"""The compression MLP of native sparse attention: one summary for each block of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.modules import INIT_STD


class Compress(nn.Module):
    """φ: x [..., l, K] -> W_2·SiLU(W_1·vec(x + E)) [..., K], hidden K, shared by the heads."""

    decays = ("positions",)

    def __init__(self, block_size: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(block_size, width))
        self.up = nn.Linear(block_size * width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the positions E with std 0.02."""
        nn.init.normal_(self.positions, std=INIT_STD, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Blocks x [..., l, K] -> summaries [..., K]."""
        return self.down(F.silu(self.up((x + self.positions).flatten(-2))))
