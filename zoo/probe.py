"""Looking inside a model: blocks show what they have, a probe decides what to look at.

    def forward(self, x, ctx):
        ...
        ctx.show("gates", lambda: {"output": gate})        # in a block; nothing happens where nobody looks

    probe = Probe(look, kinds={"gates"})                   # look(Sight) is called for every gate of every layer
    model(tokens, Context.of(tokens, probe=probe))

What is shown is computed besides the model's own work and never enters it, so probing changes no output and no
gradient. The kinds, and the tensors in each (B sequences of T tokens, H heads):

    streams     streams [B, T, D] or [B, T, n, D] before a sub-block (after the last one: part "head"), still attached
                to the graph; with several streams also pre, post [B, T, n] and res [B, T, n, n]
    attention   weights [B, H, T, T]: how much of token s (last axis) goes into token t; rows sum to 1
    gates       a tensor [B, T, H, ...] of numbers in (0, 1) a gate, by the gate's name
    selection   selected bool [B, H, T, T]: which tokens a query may read, and, where the block learns to find what
                full attention would look at, that attention: dense [B, H, T, T]
    routing     probabilities [B, T, H, E] and choices int64 [B, T, H, k], best first; one head where heads share
    recurrence  states [B, P, M, H, K, V] after `ends` int64 [P] tokens, in M memories; log_decay [B, T, M, H, K or 1],
                NaN where a token leaves a memory alone
    solver      residuals [steps + 1, B, T, H]: ‖q − (H + Λ)x‖ / ‖q‖ after so many steps
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch
from torch import Tensor

KINDS = ("streams", "attention", "gates", "selection", "routing", "recurrence", "solver")

Values = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Sight:
    """What one sub-block showed: values by name.

    layer: from 0; part: "mixer", "channel" or "head"; block: the registered name of the mixer or channel mixer.
    """

    kind: str
    values: Values
    layer: int
    part: str
    block: str = ""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Hands what blocks show to `look`, if its kind is among `kinds`; place says where in the model it comes from."""

    look: Callable[[Sight], None]
    kinds: Collection[str] = KINDS
    place: dict[str, int | str] = dataclasses.field(default_factory=dict)

    def at(self, **place: int | str) -> Probe:
        """The same probe further inside the model."""
        return dataclasses.replace(self, place={**self.place, **place})

    def show(self, kind: str, make: Callable[[], Values]) -> None:
        """Compute what is shown, without a graph of its own, and look at it. Raises KeyError for an unknown kind."""
        if kind not in KINDS:
            raise KeyError(f"a probe knows {', '.join(KINDS)}, not '{kind}'")
        if kind in self.kinds:
            with torch.no_grad():
                values = make()
            self.look(Sight(kind, values, **self.place))


def one_hot_values(v: Tensor) -> Tensor:
    """Values [B, T, Hkv, T] that say which token they are of, in place of v [B, T, Hkv, V].

    Attention is linear in its values, so with these an operation returns its weights, [B, T, H, T].
    """
    time = v.shape[1]
    return torch.eye(time, device=v.device, dtype=v.dtype)[None, :, None].expand(
        v.shape[0], -1, v.shape[2], -1
    )
