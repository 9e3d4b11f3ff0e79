"""What a training step forgets after its forward pass and computes again in its backward: memory for time.

    none       nothing
    full       all inside a layer; kept are the streams between layers
    selective  what is cheap: the norms, coefficients, maps, what each sub-block reads and the streams after it, and an
               indexer's projections. Kept are what mixers and channel mixers save for their own backward, their
               outputs, and the streams before every block of √(nL/(n+2)) layers (n streams, L layers)

Results are the same bit for bit. Autograd saves tensors through hooks here: of forgotten arithmetic it gets numbers,
and when it asks for one, the arithmetic runs once more from what was kept, and gives all of them.
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
from zoo.mixer import Aux

MODES = ("none", "full", "selective")
Run = Callable[[Tensor, Context], tuple[Tensor, Aux]]


@dataclasses.dataclass(frozen=True)
class Recompute:
    """How a model trains: mode, one of MODES, and of "selective" the layers in a block (None: √(nL/(n+2)))."""

    mode: str = "none"
    block: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("trainer.recompute", self.mode, MODES)

    def run(self, layers: Sequence[Run], x: Tensor, ctx: Context, streams: int) -> tuple[Tensor, list[Aux]]:
        """All layers, one after the other, and the auxiliary losses of each."""
        if self.mode == "none" or not torch.is_grad_enabled() or ctx.probe is not None:
            return _chain(layers)(x, ctx)
        found: list[Aux] = []
        for run in self._pieces(layers, streams):
            x, losses = run(x, ctx)
            found += losses
        return x, found

    def _pieces(self, layers: Sequence[Run], streams: int) -> list[Callable]:
        if self.mode == "full":
            return [_forgotten(layer) for layer in layers]
        length = self.block or block_length(streams, len(layers))
        return [_cheap_forgotten(_chain(layers[i : i + length])) for i in range(0, len(layers), length)]


def block_length(streams: int, layers: int) -> int:
    """√(nL/(n+2)), rounded: the block whose n streams at its start and whose y and z a layer are fewest in all."""
    return max(1, round(math.sqrt(streams * layers / (streams + 2))))


def keep(function: Run, u: Tensor, ctx: Context | None) -> tuple[Tensor, Aux]:
    """A mixer or channel mixer on u: what it saves and returns is kept, where the arithmetic around it is not."""
    block = None if ctx is None else ctx.memory
    return function(u, ctx) if block is None else block.keep(function, u, ctx)


def cheap(function: Callable[..., Sequence[Tensor]], x: Tensor, *more: Any, ctx: Context) -> Sequence[Tensor]:
    """Tensors that a mixer makes of x at little cost: forgotten where the arithmetic around the mixer is."""
    inside = ctx.memory
    return function(x, *more) if inside is None else inside.cheap(function, x, *more)


def _chain(layers: Sequence[Run]) -> Callable[[Tensor, Context], tuple[Tensor, list[Aux]]]:
    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[Aux]]:
        found = []
        for layer in layers:
            x, losses = layer(x, ctx)
            found.append(losses)
        return x, found

    return run


def _forgotten(layer: Run) -> Callable[[Tensor, Context], tuple[Tensor, list[Aux]]]:
    """The layer with nothing kept but its input. No generator to restore: noise is a function of (seed, step)."""

    def run(x: Tensor, ctx: Context) -> tuple[Tensor, list[Aux]]:
        start = _leaf(x)
        again = _Again(lambda: layer(start, dataclasses.replace(ctx, repeated=True))[:1], x)
        with again.forgetting():
            x, losses = layer(x, ctx)
        return x, [losses]

    return run


class _Again:
    """Arithmetic that runs twice: what it saves for the backward and its outputs are forgotten and made again.

    replay: runs it once more, on kept inputs, and returns its outputs, at least one.

    Only the graph holds on to it, and it to nothing of the graph, so that memory is free as soon as the backward is
    past. Until then what was made again stays: a backward may ask for the same tensor twice.
    """

    def __init__(self, replay: Callable[[], Sequence[Tensor]], like: Tensor) -> None:
        self.replay = replay
        self.count = 0
        self.saved: dict[int, Tensor] = {}
        self.outputs: list[Tensor] = []
        self.autocast = _autocast(like)

    def forgetting(self) -> saved_tensors_hooks:
        """While inside, autograd saves numbers in place of tensors."""
        return saved_tensors_hooks(self._number, self._recall)

    def output(self, index: int) -> Tensor:
        """One of the outputs, without a graph."""
        if not self.outputs:
            self._repeat()
        return self.outputs[index]

    def _number(self, _: Tensor) -> int:
        self.count += 1
        return self.count - 1

    def _recall(self, number: int) -> Tensor:
        if number not in self.saved:
            self._repeat()
        return self.saved[number]

    def _repeat(self) -> None:
        again: list[Tensor] = []
        collecting = saved_tensors_hooks(lambda x: again.append(x.detach()), _no_backward)
        with torch.enable_grad(), torch.autocast(**self.autocast), collecting:
            self.outputs = [x.detach() for x in self.replay()]
        if len(again) != self.count:
            raise RuntimeError(f"computed again, {len(again)} tensors were saved in place of {self.count}")
        self.saved = dict(enumerate(again))


def _cheap_forgotten(run: Callable[[Tensor, Context], tuple[Tensor, list[Aux]]]) -> Callable:
    """Some layers, of which what mixers and channel mixers do is kept, and nothing else."""

    def block(x: Tensor, ctx: Context) -> tuple[Tensor, list[Aux]]:
        start, kept = _leaf(x), []

        def replay() -> list[Tensor]:
            second = _Replay(kept)
            run(start, dataclasses.replace(ctx, memory=second, repeated=True))
            return second.read

        again = _Again(replay, x)
        with again.forgetting():
            return run(x, dataclasses.replace(ctx, memory=_First(again, kept)))

    return block


class _First:
    """`Context.memory` of the first time: mixers and channel mixers run, and their outputs are kept."""

    def __init__(self, again: _Again, kept: list[Tensor]) -> None:
        self.again, self.kept = again, kept

    def keep(self, function: Run, u: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        index, again, inside = len(self.kept), self.again, _Inside()
        inside.follow(u, lambda: again.output(index))
        with saved_tensors_hooks(inside.pack, inside.unpack):
            z, aux = function(u, dataclasses.replace(ctx, memory=inside))
        inside.followed.clear()
        self.kept.append(_leaf(z))
        return z, aux


class _Replay:
    """`Context.memory` of the second time: mixers and channel mixers do not run, their outputs were kept."""

    def __init__(self, kept: list[Tensor]) -> None:
        self.kept, self.read = kept, []

    def keep(self, function: Run, u: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        self.read.append(u)
        return self.kept[len(self.read) - 1], {}


class _Followed(NamedTuple):
    """A tensor that can be made again; it stays alive while it is followed, lest another take its place in memory."""

    tensor: Tensor
    make: Callable[[], Tensor]


class _View(NamedTuple):
    """What is saved in place of a view of a tensor that can be made again."""

    make: Callable[[], Tensor]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Inside:
    """`Context.memory` inside a mixer or channel mixer: tensors are saved as they are, or how to make them again."""

    def __init__(self) -> None:
        self.followed: list[_Followed] = []

    def follow(self, x: Tensor, make: Callable[[], Tensor]) -> None:
        """Save x and its views as ways to make them again."""
        if x.numel():
            self.followed.append(_Followed(x.detach(), make))

    def cheap(self, function: Callable[..., Sequence[Tensor]], x: Tensor, *more: Any) -> Sequence[Tensor]:
        kept, wants = self.pack(x), x.requires_grad
        again = _Again(lambda: function(self.unpack(kept).requires_grad_(wants), *more), x)
        with again.forgetting():
            outputs = function(x, *more)
        for index, y in enumerate(outputs):
            if y.grad_fn is not None:  # not a parameter
                self.follow(y, lambda i=index: again.output(i))
        return outputs

    def pack(self, x: Tensor) -> Tensor | _View:
        for y, make in self.followed:
            if x.dtype == y.dtype and _place(x) == _place(y):
                return _View(make, x.size(), x.stride(), x.storage_offset())
        # Without its graph: an output that its own node holds would never be freed.
        return x.detach()

    def unpack(self, saved: Tensor | _View) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        return saved.make().as_strided(saved.size, saved.stride, saved.offset)


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _leaf(x: Tensor) -> Tensor:
    """The same numbers as the beginning of a graph of its own."""
    return x.detach().requires_grad_(x.requires_grad)


def _autocast(x: Tensor) -> dict[str, Any]:
    """The autocast that is on now, for `torch.autocast`; its cache would hold on to what is made again."""
    device = x.device.type
    on = torch.is_autocast_enabled(device)
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": on,
        "cache_enabled": False,
    }


def _no_backward(_: object) -> Tensor:
    raise RuntimeError("what is computed again has no backward of its own")
