"""The contract of a sequence mixer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from zoo.cache import state_bytes
from zoo.context import Context

Aux = dict[str, Tensor]


class Mixer(nn.Module, ABC):
    """Mixes information over time: x [B, T, D] -> y [B, T, D], causally.

    x arrives normalised (the norm belongs to the layer). Auxiliary losses are returned as scalars by name, never kept
    in attributes; `aux_weights` gives each name's weight in the training loss. A decode state may be any object that
    holds tensors; `step` repeated must equal `forward` in evaluation mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aux_weights: dict[str, float] = {}

    @abstractmethod
    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], auxiliary losses)."""

    @abstractmethod
    def init_state(
        self, batch_size: int, *, capacity: int = 0, device: Any = None, dtype: torch.dtype = torch.float32
    ) -> Any:
        """The decode state before the first token; capacity: how many tokens to make room for at once."""

    @abstractmethod
    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: x [B, D] -> (y [B, D], the state after it)."""

    def state_bytes(self, state: Any) -> int:
        """Bytes that a decode state of one sequence holds."""
        return state_bytes(state)
