"""Probe events: tensors that a block records while it computes, and the probe that receives them.

    def forward(self, x, ctx):
        ...
        ctx.record("gates", lambda: {"output": gate})      # in a block; does nothing without a probe

    probe = Probe(callback, kinds={"gates"})               # callback(ProbeEvent), for every gate of every layer
    model(tokens, Context.of(tokens, probe=probe))

Recorded tensors are computed apart from the model's own and never enter it, so probing changes no output and no
gradient. The kinds that every block may record are in zoo.probes.kinds; a block's own file may register more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch
from torch import Tensor

_KINDS: dict[str, dict[str, str]] = {}


def register_event(kind: str, /, **values: str) -> None:
    """Register a kind of probe event by its name, with what each of its tensors is: shape and meaning.

        register_event("solver", residuals="[steps + 1, B, T, H]: ‖q − (H + Λ)x‖ / ‖q‖ after so many steps")

    Raises ValueError for a name that is taken by another description.
    """
    if _KINDS.setdefault(kind, values) != values:
        raise ValueError(f"the probe event '{kind}' is registered with other tensors; choose another name")


def event_kinds() -> dict[str, dict[str, str]]:
    """Every kind of probe event: the tensors in it by name, each with its shape and meaning."""
    return {kind: dict(values) for kind, values in _KINDS.items()}


@dataclasses.dataclass(frozen=True)
class ProbeEvent:
    """Tensors by name that one sub-block recorded, in the shapes that `event_kinds` gives, [B, T, ...] for most.

    layer: from 0; part: "mixer", "channel" or "head"; block: the registered name of the mixer or channel mixer.
    """

    kind: str
    values: dict[str, Tensor]
    layer: int
    part: str
    block: str = ""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Calls `callback` with every event of the kinds in `kinds` (None: all); place: layer, part and block so far."""

    callback: Callable[[ProbeEvent], None]
    kinds: Collection[str] | None = None
    place: dict[str, int | str] = dataclasses.field(default_factory=dict)

    def at(self, **place: int | str) -> Probe:
        """This probe with more of its place known: layer, part or block."""
        return dataclasses.replace(self, place={**self.place, **place})

    def record(self, kind: str, make: Callable[[], dict[str, Tensor]]) -> None:
        """Call `callback` with the tensors that `make` returns, computed without a graph, if it takes the kind.

        Raises KeyError for a kind that is not registered.

        make: returns the tensors by name, in the shapes that `event_kinds` gives, [B, T, ...] for most.
        """
        if kind not in _KINDS:
            raise KeyError(f"a probe knows {', '.join(_KINDS)}, not '{kind}' (zoo.probes.register_event)")
        if self.kinds is None or kind in self.kinds:
            with torch.no_grad():
                values = make()
            self.callback(ProbeEvent(kind, values, **self.place))
