"""The modes of recomputation, and a model's layers run under one of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zoo.context import Context
from zoo.errors import unknown
from zoo.recompute.replay import Replay, leaf
from zoo.recompute.selective import selective

MODES = ("none", "full", "selective")
Layer = Callable[[Tensor, Context], tuple[Tensor, dict[str, Tensor]]]
Layers = Callable[[Tensor, Context], tuple[Tensor, list[dict[str, Tensor]]]]


@dataclasses.dataclass(frozen=True)
class Recompute:
    """A mode of recomputation, one of MODES; block: layers in a group of "selective" (None: √(nL/(n+2)))."""

    mode: str = "none"
    block: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("trainer.recompute", self.mode, MODES)

    def run(
        self, layers: Sequence[Layer], x: Tensor, ctx: Context, streams: int
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """All layers, one after the other: the streams x after the last, and the auxiliary losses of each."""
        if self.mode == "none" or not torch.is_grad_enabled() or ctx.probe is not None:
            return _chain(layers)(x, ctx)
        found: list[dict[str, Tensor]] = []
        for run in self._groups(layers, streams):
            x, losses = run(x, ctx)
            found += losses
        return x, found

    def _groups(self, layers: Sequence[Layer], streams: int) -> list[Layers]:
        if self.mode == "full":
            return [_full(layer) for layer in layers]
        length = self.block or block_length(streams, len(layers))
        return [selective(_chain(layers[i : i + length])) for i in range(0, len(layers), length)]


def block_length(streams: int, layers: int) -> int:
    """√(nL/(n+2)), rounded: the b that minimises nL/b streams before groups plus (n+2)b tensors inside one."""
    return max(1, round(math.sqrt(streams * layers / (streams + 2))))


def _chain(layers: Sequence[Layer]) -> Layers:
    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
        found = []
        for layer in layers:
            x, losses = layer(x, ctx)
            found.append(losses)
        return x, found

    return run


def _full(layer: Layer) -> Layers:
    """The layer with nothing saved but its input. No generator to restore: noise is a function of (seed, step)."""

    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
        start = leaf(x)
        replay = Replay(lambda: layer(start, dataclasses.replace(ctx, repeated=True))[:1], x)
        with replay.dropping():
            x, losses = layer(x, ctx)
        return x, [losses]

    return run
