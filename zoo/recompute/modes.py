"""The modes of recomputation, a model's layers run under one of them, and what layers and mixers call inside."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.context import Context
from zoo.errors import unknown
from zoo.recompute.replay import Replay, leaf
from zoo.recompute.selective import Aux, SubBlock, selective

MODES = ("none", "full", "selective")
Layer = Callable[[Tensor, Context], tuple[Tensor, dict[str, Tensor]]]
Layers = Callable[[Tensor, Context], tuple[Tensor, list[dict[str, Tensor]]]]


@dataclasses.dataclass(frozen=True)
class Recompute:
    """A mode of recomputation, one of MODES; block: layers in a group of "selective" (None: √(rL/(n+2)))."""

    mode: str = "none"
    block: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("trainer.recompute", self.mode, MODES)

    def run(
        self, layers: Sequence[Layer], x: Tensor, ctx: Context, *, carried: int, inside: int
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """All layers, one after the other: the streams x after the last, and the auxiliary losses of each.

        carried, inside: vectors of a token between and inside layers.
        """
        if not torch.is_grad_enabled() or ctx.probe is not None or x.is_meta:
            return run_layers(layers, x, ctx)
        found: list[dict[str, Tensor]] = []
        for run in self._groups(layers, carried, inside):
            x, losses = run(x, ctx)
            found += losses
        return x, found

    def _groups(self, layers: Sequence[Layer], carried: int, inside: int) -> list[Layers]:
        if self.mode == "full":
            return [_full(layer) for layer in layers]
        if self.mode == "selective":
            length = self.block or block_length(carried, inside, len(layers))
        elif carried == inside or torch.compiler.is_compiling():  # a compiler decides itself what is saved
            return [_chain(layers)]
        else:
            length = 1
        return [selective(_chain(layers[i : i + length])) for i in range(0, len(layers), length)]


def block_length(carried: int, inside: int, layers: int) -> int:
    """√(rL/(n+2)), rounded: the b that minimises rL/b vectors before groups plus (n+2)b tensors inside one.

    carried, inside: r vectors of a token between layers, n inside.
    """
    return max(1, round(math.sqrt(carried * layers / (inside + 2))))


def run_layers(layers: Sequence[Layer], x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Layers one after the other, all saved for the backward: x after the last, and the auxiliary losses of each."""
    found = []
    for layer in layers:
        x, losses = layer(x, ctx)
        found.append(losses)
    return x, found


def run_saved(function: SubBlock, u: Tensor, ctx: Context | None) -> tuple[Tensor, Aux]:
    """A mixer or channel mixer on u: the tensors of its backward and its output are saved, never computed again."""
    group = None if ctx is None else ctx.recompute
    return function(u, ctx) if group is None else group.run_saved(function, u, ctx)


def run_recomputed(
    function: Callable[..., Sequence[Tensor]], x: Tensor, *more: Any, ctx: Context
) -> Sequence[Tensor]:
    """Tensors that a mixer computes from x at little cost: recomputed where the computation around the mixer is."""
    group = ctx.recompute
    return function(x, *more) if group is None else group.run_recomputed(function, x, *more)


def _chain(layers: Sequence[Layer]) -> Layers:
    return functools.partial(run_layers, layers)


def _full(layer: Layer) -> Layers:
    """The layer with nothing saved but its input. No generator to restore: noise is a function of (seed, step)."""

    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[dict[str, Tensor]]]:
        start = leaf(x)
        replay = Replay(lambda: layer(start, dataclasses.replace(ctx, repeated=True))[:1], x)
        with replay.dropping():
            x, losses = layer(x, ctx)
        return x, [losses]

    return run
