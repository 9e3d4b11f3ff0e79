"""The contract of a residual scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from zoo.modules import Dims


class Residual(nn.Module, ABC):
    """How a sub-block F is wrapped: `y, c = pre(x)`, then `x = post(x, F(norm(y)), c)`.

    One instance wraps one sub-block; `expand` and `collapse` carry the embedding into the scheme's streams and out of
    them. For a one-stream scheme x is [B, T, D]; for n streams it is [B, T, n, D].
    """

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    @abstractmethod
    def pre(self, x: Tensor) -> tuple[Tensor, Any]:
        """What the sub-block reads [B, T, D], and the coefficients that `post` needs."""

    @abstractmethod
    def post(self, x: Tensor, z: Tensor, coefficients: Any) -> Tensor:
        """The streams after the sub-block's output z [B, T, D]."""

    def expand(self, x: Tensor) -> Tensor:
        """Embedding [B, T, D] -> streams."""
        return x

    def collapse(self, x: Tensor) -> Tensor:
        """Streams -> [B, T, D]."""
        return x
