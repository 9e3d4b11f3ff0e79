"""The modes of recomputation, and a model's layers as each of them runs them."""

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
Layers = Callable[[Tensor, Context], tuple[Tensor, list[dict[str, Tensor]]]]
"""One layer or several: streams in, streams out, and the auxiliary losses of each."""


@dataclasses.dataclass(frozen=True)
class Recompute:
    """A mode of recomputation, one of MODES; block: layers in a group of "selective" (None: √(rL/(n+2)))."""

    mode: str = "none"
    block: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("trainer.recompute", self.mode, MODES)

    def groups(
        self, layers: Sequence[Layers], x: Tensor, ctx: Context, *, carried: int, inside: int
    ) -> Sequence[Layers]:
        """The layers in groups to run one after the other on the streams x, each saving what its mode saves.

        x: what the first layer receives, [B, T, r, D], or [B, T, D] of one stream; only its device is read. carried,
        inside: vectors of a token between and inside layers.
        """
        if not torch.is_grad_enabled() or ctx.probe is not None or x.is_meta:
            return layers
        if self.mode == "full":
            return [_full(layer) for layer in layers]
        if self.mode == "selective":
            length = self.block or block_length(carried, inside, len(layers))
        elif carried == inside or torch.compiler.is_compiling():  # a compiler decides itself what is saved
            return layers
        else:
            length = 1
        return [selective(_chain(layers[i : i + length])) for i in range(0, len(layers), length)]


def block_length(carried: int, inside: int, layers: int) -> int:
    """√(rL/(n+2)), rounded: the b that minimises rL/b vectors before groups plus (n+2)b tensors inside one.

    carried, inside: r vectors of a token between layers, n inside.
    """
    return max(1, round(math.sqrt(carried * layers / (inside + 2))))


def _chain(layers: Sequence[Layers]) -> Layers:
    """Layers one after the other as one."""

    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
        found = []
        for layer in layers:
            x, losses = layer(x, ctx)
            found += losses
        return x, found

    return run


def _full(layer: Layers) -> Layers:
    """The layer with nothing saved but its input. No generator to restore: noise is a function of (seed, step)."""

    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
        start = leaf(x)
        replay = Replay(lambda: layer(start, dataclasses.replace(ctx, repeated=True))[:1], x)
        with replay.dropping():
            x, losses = layer(x, ctx)
        return x, losses

    return run
