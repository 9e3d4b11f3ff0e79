"""The contract of a residual scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from zoo.modules import Dims
from zoo.probe import Values


class Streams(nn.Module):
    """What happens to the residual streams outside the sub-blocks: one instance a model.

    This one is for a single stream, x [B, T, D]: the embedding enters as it is and is read as it is.
    """

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__()

    def expand(self, x: Tensor) -> Tensor:
        """Embedding [B, T, D] -> streams."""
        return x

    def between(self, x: Tensor) -> Tensor:
        """What a layer receives of the streams that the layer before it returned."""
        return x

    def collapse(self, x: Tensor) -> Tensor:
        """Streams after the last layer -> [B, T, D]."""
        return x

    def carried(self) -> int:
        """How many vectors of width D a token carries from one layer to the next."""
        return 1


class Residual(nn.Module, ABC):
    """How a sub-block F is wrapped: `y, c = pre(x)`, then `x = post(x, F(norm(y)), c)`.

    One instance wraps one sub-block. For a one-stream scheme x is [B, T, D]; for n streams it is
    [B, T, n, D], and `streams` names the class that carries them through the model.
    """

    streams: type[Streams] = Streams

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    @abstractmethod
    def pre(self, x: Tensor) -> tuple[Tensor, Any]:
        """What the sub-block reads [B, T, D], and the coefficients that `post` needs."""

    @abstractmethod
    def post(self, x: Tensor, z: Tensor, coefficients: Any) -> Tensor:
        """The streams after the sub-block's output z [B, T, D]."""

    def shown(self, coefficients: Any) -> Values:
        """What a probe may see of the coefficients that `pre` returned."""
        return {}
