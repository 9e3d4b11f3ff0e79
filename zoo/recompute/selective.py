"""Selective recomputation: mixers and channel mixers run once, the computation around them is repeated.

The first run of a group of layers saves what each sub-block returns. The second one takes these outputs instead of
running the sub-blocks, and returns the input of each, from which its own backward may recompute tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from zoo.context import Context
from zoo.recompute.replay import Replay, leaf

Aux = dict[str, Tensor]
SubBlock = Callable[[Tensor, Context], tuple[Tensor, Aux]]


def selective(run: Callable[[Tensor, Context], tuple[Tensor, list[Aux]]]) -> Callable:
    """The layers `run`, saving only what their mixers and channel mixers save and return.

    run: streams [B, T, r, D], or [B, T, D] of one stream, and a context -> streams likewise and losses [] by name a
    layer. What is returned takes and returns the same.
    """

    def group(x: Tensor, ctx: Context) -> tuple[Tensor, list[Aux]]:
        start, outputs = leaf(x), []

        def again() -> list[Tensor]:
            second = _SecondRun(outputs)
            run(start, dataclasses.replace(ctx, recompute=second, repeated=True))
            return second.inputs

        replay = Replay(again, x)
        with replay.dropping():
            return run(x, dataclasses.replace(ctx, recompute=_FirstRun(replay, outputs)))

    return group


class _FirstRun:
    """`Context.recompute` of the first run: sub-blocks run, and their outputs are saved."""

    def __init__(self, replay: Replay, outputs: list[Tensor]) -> None:
        self.replay, self.outputs = replay, outputs

    def run_saved(self, function: SubBlock, u: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        index, replay, inside = len(self.outputs), self.replay, _InsideSubBlock()
        inside.replace(u, lambda: replay.output(index))
        with saved_tensors_hooks(inside.pack, inside.unpack):
            z, aux = function(u, dataclasses.replace(ctx, recompute=inside))
        inside.replaced.clear()
        self.outputs.append(leaf(z))
        return z, aux


class _SecondRun:
    """`Context.recompute` of the second run: sub-blocks do not run, their outputs were saved."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self.outputs, self.inputs = outputs, []

    def run_saved(self, function: SubBlock, u: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        self.inputs.append(u)
        return self.outputs[len(self.inputs) - 1], {}


class _Replaced(NamedTuple):
    """A tensor that can be recomputed; it is held here, lest another tensor take its address."""

    tensor: Tensor
    make: Callable[[], Tensor]


class _View(NamedTuple):
    """Saved in place of a view of a tensor that can be recomputed."""

    make: Callable[[], Tensor]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _InsideSubBlock:
    """`Context.recompute` inside a sub-block: tensors are saved as they are, or as functions that recompute them."""

    def __init__(self) -> None:
        self.replaced: list[_Replaced] = []

    def replace(self, x: Tensor, make: Callable[[], Tensor]) -> None:
        """Save x and its views as functions that recompute them."""
        if x.numel():
            self.replaced.append(_Replaced(x.detach(), make))

    def run_recomputed(
        self, function: Callable[..., Sequence[Tensor]], x: Tensor, *more: Any
    ) -> Sequence[Tensor]:
        saved, requires_grad = self.pack(x), x.requires_grad
        replay = Replay(lambda: function(self.unpack(saved).requires_grad_(requires_grad), *more), x)
        with replay.dropping():
            outputs = function(x, *more)
        for index, y in enumerate(outputs):
            if y.grad_fn is not None:  # not a parameter
                self.replace(y, lambda i=index: replay.output(i))
        return outputs

    def pack(self, x: Tensor) -> Tensor | _View:
        for y, make in self.replaced:
            if x.dtype == y.dtype and _address(x) == _address(y):
                return _View(make, x.size(), x.stride(), x.storage_offset())
        # Without its graph: an output that its own node holds would never be freed.
        return x.detach()

    def unpack(self, saved: Tensor | _View) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        return saved.make().as_strided(saved.size, saved.stride, saved.offset)


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata  # of the storage itself: tensors without memory have no place in it
