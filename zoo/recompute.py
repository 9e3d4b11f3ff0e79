"""Activation recomputation: what a training step drops after its forward pass and computes again in its backward.

    none       nothing; but like selective, layer by layer, where fewer vectors than the n streams go from one to
               the next (zoo.residuals.shc)
    full       all inside a layer; saved are the streams between layers
    selective  cheap tensors: the norms, coefficients, maps, the inputs of sub-blocks and the streams after them, and an
               indexer's projections. Saved are the tensors of mixers' and channel mixers' own backward, their
               outputs, and what is carried to every group of √(rL/(n+2)) layers (r vectors a token, n streams inside, L
               layers)

Results are the same bit for bit. Autograd saves tensors through hooks here: in place of a dropped tensor it saves a
number, and when the backward asks for it, the computation runs once more from saved tensors and restores all of them.
Source: the OrthGSA document, "Selective Recomputation Strategy"; mHC (arXiv:2512.24880), its section on recomputing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from zoo.context import Context
from zoo.errors import unknown

# A computation that runs twice: once for its results, and again when the backward asks for its saved tensors.


class Replay:
    """Drops the tensors that a computation saves for its backward, and its outputs; recomputes them when asked.

    function: runs the computation once more, on saved inputs, and returns its outputs, at least one.

    Only the graph refers to it, and it refers to nothing of the graph, so that memory is freed as soon as the backward
    is done. Until then recomputed tensors stay: a backward may ask for the same one twice.
    """

    def __init__(self, function: Callable[[], Sequence[Tensor]], like: Tensor) -> None:
        self.function = function
        self.count = 0
        self.saved: dict[int, Tensor] = {}
        self.outputs: list[Tensor] = []
        self.autocast = _autocast(like)

    def dropping(self) -> saved_tensors_hooks:
        """While inside, autograd saves numbers in place of tensors."""
        return saved_tensors_hooks(self._number, self._tensor)

    def output(self, index: int) -> Tensor:
        """One of the outputs, without a graph, in the shape [...] that the function gave it."""
        if not self.outputs:
            self._repeat()
        return self.outputs[index]

    def _number(self, _: Tensor) -> int:
        self.count += 1
        return self.count - 1

    def _tensor(self, number: int) -> Tensor:
        if number not in self.saved:
            self._repeat()
        return self.saved[number]

    def _repeat(self) -> None:
        again: list[Tensor] = []
        collecting = saved_tensors_hooks(lambda x: again.append(x.detach()), _no_backward)
        with torch.enable_grad(), torch.autocast(**self.autocast), collecting:
            self.outputs = [x.detach() for x in self.function()]
        if len(again) != self.count:
            raise RuntimeError(f"recomputation saved {len(again)} tensors, and the forward pass {self.count}")
        self.saved = dict(enumerate(again))


def leaf(x: Tensor) -> Tensor:
    """The same values as a leaf of a new graph: x [...] -> [...], which requires a gradient where x does."""
    return x.detach().requires_grad_(x.requires_grad)


def _autocast(x: Tensor) -> dict[str, Any]:
    """The arguments of `torch.autocast` for the state it is in now; its cache would keep recomputed tensors alive."""
    device = x.device.type
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
        "cache_enabled": False,
    }


def _no_backward(_: object) -> Tensor:
    raise RuntimeError("recomputed values cannot be differentiated a second time")


# Selective recomputation: mixers and channel mixers run once, the computation around them is repeated.
#
# The first run of a group of layers saves what each sub-block returns. The second one takes these outputs instead of
# running the sub-blocks, and returns the input of each, from which its own backward may recompute tensors.

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


# The modes of recomputation, and a model's layers as each of them runs them.

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
        results = []
        for layer in layers:
            x, losses = layer(x, ctx)
            results += losses
        return x, results

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


__all__ = ["MODES", "Recompute", "block_length"]
