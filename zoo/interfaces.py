"""The interfaces of blocks: sequence mixer, channel mixer and residual scheme, and the model's sizes given to each.

A block registers itself under a name (zoo.registry), and the model uses it through these methods alone. Training asks
every module of a block two things more: the optimiser's settings for its parameters, and to be told the step, where its
maths changes during training (StepBuffer). And a module whose result depends on anything that is neither a parameter
nor a saved buffer (a buffer that is not persistent, a number read from a buffer) has `restore()`, which computes that
again from those: it is called where a model was built without storage and then filled (`restore`).

    class Indexer(nn.Module):
        parameter_group = ParameterGroup("indexer", lr_scale=10.0)  # this module's parameters and its parts'
        decays = ("bank",)                                          # own parameters under weight decay

Weights of nn.Linear and nn.Embedding always decay; a part with a `parameter_group` of its own leaves the group of the
whole.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.context import Context
from zoo.modules.caches import state_bytes
from zoo.modules.layers import NORM_EPS

NOT_BY_STEPS = ("varlen", "flash_attn")
"""Backends that compute whole sequences alone: `Dims.step_backend` says why."""

WITHOUT_DATA = ("auto", "torch", "reference")
"""Backends that every operation has for every call; others are "auto" in models without storage: kernels need data."""

Aux = dict[str, Tensor]
"""Auxiliary losses by name, scalars: each the mean over the batch's sequences of a number that each decides alone.

Only so is a step's loss independent of how it is cut: training weighs a micro-batch's by its share of the sequences.
"""


@dataclasses.dataclass(frozen=True)
class Dims:
    """The sizes of the model that a block is part of.

    d_model: width; n_heads: the model's heads; seq_len: the *configured* length T (rules such as k = T/8 use it,
    never the batch's length, so that decoding agrees with training); layer: index of the layer, from 0;
    depth: number of layers; backend: kernels' backend ("auto" picks by device and shape); norm_eps: ε of the model's
    RMSNorms.
    """

    d_model: int
    n_heads: int
    seq_len: int
    layer: int
    depth: int
    backend: str = "auto"
    norm_eps: float = NORM_EPS

    def heads(self, own: int | None) -> int:
        """A block's own number of heads, or the model's where that is None."""
        return self.n_heads if own is None else own

    @property
    def step_backend(self) -> str:
        """The backend of attention in a decode step: `backend`, or "auto" in place of those for packed sequences.

        Those need the keys and values of all sequences concatenated, which would copy the whole cache for every
        token, and they do not serve the forms that only a step has (MLA's absorbed rows, path_step).
        """
        return "auto" if self.backend in NOT_BY_STEPS else self.backend

    @property
    def body_backend(self) -> str:
        """The backend of what all models share: `backend`, or "auto" in place of those that are chosen for mixers."""
        return self.backend if self.backend in WITHOUT_DATA else "auto"


class Mixer(nn.Module, ABC):
    """Mixes information over time: x [B, T, D] -> y [B, T, D], causally.

    x arrives normalised (the norm belongs to the layer). Auxiliary losses are returned as scalars by name, never kept
    in attributes; `aux_weights` gives each name's weight in the training loss. A decode state is made of tensors
    [B, ...] and caches (zoo.modules.caches); `extend`, over a sequence cut in any way, must equal `forward` in
    evaluation mode.

    A mixer is made as `cls(config, dims)`. Raises UserError for options that do not suit it or the model's sizes, which
    names the option, its value and what it has to be, such as "mom.top_k=9 must be from 1 to n_memories=8".
    """

    gradient_may_vanish: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that may have no gradient at the start, by design."""

    state_options: ClassVar[tuple[str, ...]] = ()
    """Integer options that the size of the decode state grows with, at most with their square: the first is what
    match=state solves for, a second one makes up for what is left of it. Empty: the state has one size."""

    work_options: ClassVar[tuple[str, ...]] = ()
    """Integer options from 1 on that a token's FLOPs grow with linearly, which match=flops names where it fails."""

    context_parallel: ClassVar[bool] = False
    """Whether `forward` computes on a shard (`ctx.shard`, zoo.context_parallel). Where not, its input is gathered, and
    every rank computes the whole: right, but no faster and no smaller than on one device."""

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
    def extend(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next T ≥ 1 tokens of every sequence: x [B, T, D] -> (y [B, T, D], the state after them).

        A prompt is read by one call, or by one for each chunk; decoding is T = 1. The state given may be changed, and
        is not to be used again.
        """

    def state_bytes(self, state: Any) -> int:
        """Bytes that a decode state holds. Raises TypeError for a kind of state that cannot be counted."""
        return state_bytes(state)


class Channel(nn.Module, ABC):
    """Mixes the channels of every token by itself: x [B, T, D] -> y [B, T, D].

    x arrives normalised (the norm belongs to the layer). Auxiliary losses are returned as scalars by name,
    each computed per sequence and then averaged; `aux_weights` gives each name's weight in the training
    loss. While decoding there is no context and there are no losses.

    A channel mixer is made as `cls(config, dims)`. Raises UserError for options that do not suit it or the model's
    sizes, which names the option, its value and what it has to be, such as "moe.top_k=9 must lie between 1 and
    moe.n_experts=8".
    """

    gradient_may_vanish: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that may have no gradient at the start, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.aux_weights: dict[str, float] = {}

    @abstractmethod
    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Aux]:
        """x [B, T, D] -> (y [B, T, D], auxiliary losses; none without a context)."""


class Streams(nn.Module):
    """The residual streams outside the sub-blocks: made from the embedding, passed between layers, read by the head.

    One instance per model. This base class is for a single stream, x [B, T, D], and changes nothing.
    """

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__()

    def expand(self, x: Tensor) -> Tensor:
        """Embedding [B, T, D] -> streams [B, T, n, D]; of one stream [B, T, D]."""
        return x

    def pack(self, x: Tensor) -> Tensor:
        """Streams [B, T, n, D] that a layer returned -> what is carried to the next, where its backward starts from.

        That is [B, T, r, D] for r = `carried` vectors a token; of one stream [B, T, D].
        """
        return x

    def unpack(self, s: Tensor) -> Tensor:
        """Unpack what was carried, [B, T, r, D], into the streams [B, T, n, D] that a layer receives."""
        return s

    def collapse(self, x: Tensor) -> Tensor:
        """Streams [B, T, n, D] after the last layer -> [B, T, D]."""
        return x

    def inside(self) -> int:
        """The number of vectors of width D that a token has inside a layer."""
        return 1

    def carried(self) -> int:
        """The number of vectors of width D that a token carries from one layer to the next."""
        return self.inside()


class Residual(nn.Module, ABC):
    """Wraps a sub-block F: `y, c = pre(x)`, then `x = post(x, F(norm(y)), c)`; the layer's norm stands between.

    One instance wraps one sub-block. For a one-stream scheme x is [B, T, D]; for n streams it is
    [B, T, n, D], and `streams` names the class that carries them through the model.

    A scheme is made as `cls(config, dims)`, as its `streams` are. Raises UserError for options that do not suit it or
    the model's sizes, which names the option, its value and what it has to be, such as "n_streams=1 must be at least
    2; for one stream: residual.name=add".
    """

    gradient_may_vanish: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that may have no gradient at the start, by design."""

    streams: type[Streams] = Streams

    def __init__(self, config: Any, dims: Dims) -> None:
        super().__init__()
        self.dims = dims

    @abstractmethod
    def pre(self, x: Tensor) -> tuple[Tensor, Any]:
        """The sub-block's input [B, T, D], and the coefficients that `post` needs."""

    def normed_pre(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor, Any]:
        """The layer's norm of what `pre` returns [B, T, D], the streams for `post`, and the coefficients.

        A scheme may compute sum and norm in one pass, and return streams whose gradient is added on the way back.
        """
        y, coefficients = self.pre(x)
        return norm(y), x, coefficients

    @abstractmethod
    def post(self, x: Tensor, z: Tensor, coefficients: Any) -> Tensor:
        """The streams after the sub-block's output z [B, T, D], in the shape of x."""

    def probe_values(self, coefficients: Any) -> dict[str, Tensor]:
        """The tensors in the coefficients that `pre` returned, [B, T, ...] by name, for the probe event "streams".

        Measures of the mixing need res [B, T, n, n], which `post` multiplies the streams by; a scheme that leaves it
        out has none of them, and stands in none of their figures. pre and post [B, T, n]: as `event_kinds` says.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """clip: the clipping group, whose gradients are clipped together; lr_scale: factor of the learning rate.

    each: every module that has this group is a clipping group of its own.
    """

    clip: str = "main"
    lr_scale: float = 1.0
    each: bool = False


MAIN = ParameterGroup()


def grouped_parameters(
    module: nn.Module, group: ParameterGroup = MAIN, name: str = ""
) -> Iterator[tuple[nn.Parameter, ParameterGroup, bool]]:
    """Every parameter in module order, with its group and whether it decays; a shared one once per module.

    group, name: of the module, which is a part of another.
    """
    own = getattr(module, "parameter_group", None)
    if own is not None:
        group = dataclasses.replace(own, clip=f"{own.clip} of {name}") if own.each else own
    decays = ("weight",) if isinstance(module, nn.Linear | nn.Embedding) else getattr(module, "decays", ())
    for name, parameter in module.named_parameters(recurse=False):
        yield parameter, group, name in decays
    for part_name, part in module.named_children():
        yield from grouped_parameters(part, group, f"{name}.{part_name}".lstrip("."))


class StepBuffer(nn.Module):
    """step: optimiser steps done, int64 []; total: how many the training will have, 0 where unknown.

    Both are part of every checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def set(self, step: int, total: int) -> None:
        """Set both; called when training starts, and in every optimiser step after the gradients, before the update."""
        self.step.fill_(step)
        self.total.fill_(total)


@torch.no_grad()
def restore(model: nn.Module) -> None:
    """Have every module of a model that was built on the meta device and filled compute what is not saved."""
    for module in model.modules():
        if hasattr(module, "restore"):
            module.restore()


def set_step(model: nn.Module, step: int, total: int = 0) -> None:
    """Set in every StepBuffer of a model how many optimiser steps are done, and how many there will be."""
    for module in model.modules():
        if isinstance(module, StepBuffer):
            module.set(step, total)
