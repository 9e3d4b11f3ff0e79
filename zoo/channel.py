"""The contract of a channel mixer."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from zoo.context import Context
from zoo.mixer import Aux


class Channel(nn.Module, ABC):
    """Mixes the channels of every token by itself: x [B, T, D] -> y [B, T, D].

    x arrives normalised (the norm belongs to the layer). Auxiliary losses are returned as scalars by name,
    each computed per sequence and then averaged; `aux_weights` gives each name's weight in the training
    loss. While decoding there is no context and there are no losses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aux_weights: dict[str, float] = {}

    @abstractmethod
    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Aux]:
        """x [B, T, D] -> (y [B, T, D], auxiliary losses; none without a context)."""
