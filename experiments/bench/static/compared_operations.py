"""The operations that have a peer, at the sizes at which they are compared: one sequence of 8,192 tokens in bf16, or a
token of each of 32 sequences.

Tensors are empty memory: nothing reads them; host_calls.py puts in what the host would read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from experiments.bench import peers
from experiments.bench.cases import Call, call, nsa
from experiments.bench.model_steps import InputFactory
from experiments.bench.static.host_calls import on_triton
from experiments.bench.static.operation_counts import WAYS

OURS = "triton"
LENGTH = 8192
SEQUENCES = 32
"""That are decoded together: a token of one alone takes the time of its launch."""
HALF = torch.bfloat16
PACKAGES = {"fla": "fla-core"}
"""Peer -> the package that it comes with."""


class EmptyInputs(InputFactory):
    """Inputs of the right sizes in memory that nobody has written, on the CPU."""

    def __init__(self, length: int, batch: int = 1) -> None:
        super().__init__(batch, length, torch.device("cpu"), HALF)

    def weight(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Empty, of this shape."""
        return torch.empty(shape, dtype=self.dtype if dtype is None else dtype).requires_grad_()

    def unit(self, *shape: int) -> Tensor:
        """Empty [B, T, *shape]."""
        return self.normal(*shape)

    def log_gate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Empty [B, T, *shape]."""
        return self.normal(*shape, dtype=dtype)

    gate = log_gate


def _kda(d: InputFactory) -> Call:
    """96 heads of 128, as published comparisons have it."""
    q, k, v = d.unit(96, 128), d.unit(96, 128), d.normal(96, 128)
    return call("delta_rule", q, k, v, d.log_gate(96, 128, dtype=HALF), d.gate(96, dtype=HALF))


def _gdn(d: InputFactory) -> Call:
    """The same with a gate a head."""
    q, k, v = d.unit(96, 128), d.unit(96, 128), d.normal(96, 128)
    return call("delta_rule", q, k, v, d.log_gate(96), d.gate(96, dtype=HALF))


def _path(d: InputFactory) -> Call:
    """16 heads of 64, with a forget gate."""
    q, k, v, w = d.normal(16, 64), d.normal(16, 64), d.normal(16, 64), d.unit(16, 64)
    return call("path_attention", q, k, v, w, d.gate(16, dtype=HALF), d.log_gate(16))


def _mesa(d: InputFactory) -> Call:
    """16 heads of 64, 30 steps of conjugate gradients."""
    q, k, v = d.unit(16, 64), d.unit(16, 64), d.normal(16, 64)
    return call("mesa", q, k, v, d.log_gate(16), d.gate(16, dtype=HALF), d.ones(16, 64))


def _nsa(d: InputFactory) -> Call:
    """64 query heads to 4 of keys and values, of 128."""
    (made,) = nsa(d, 64, 128)
    return made


def _short_conv(d: InputFactory) -> Call:
    """Four taps and SiLU, as fla's layers have it, over the channels of KDA's 96 heads of 128."""
    return call("short_conv", d.normal(96 * 128), d.weight(96 * 128, 4), activation="silu")


def _kda_step(d: InputFactory) -> Call:
    """One token of KDA's 96 heads of 128, from a state in fp32 to the state after it."""
    made = _kda(d)
    state = d.weight(d.batch, 96, 128, 128, dtype=torch.float32)
    return call(made.operation, *made.arguments, initial_state=state, output_final_state=True)


def installed(peer: str) -> bool:
    """Return whether a peer's package is there; it is not imported, as that looks for a GPU."""
    try:
        version(peer)
    except metadata.PackageNotFoundError:
        return False
    return True


def version(library: str) -> str:
    """A peer's package with its version; "" of ours, which the commit names."""
    package = PACKAGES.get(library)
    return f"{package} {metadata.version(package)}" if package else ""


@dataclass(frozen=True)
class Operation:
    """An operation: its call, and peer -> the case in `peers` with that peer's form.

    batch: sequences; length: the only one it has, where it does not sweep; ways: those that it is counted in
    """

    make: Callable[[InputFactory], Call]
    peers: dict[str, str]
    batch: int = 1
    length: int | None = None
    ways: tuple[str, ...] = WAYS

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of the libraries to compare: OURS, then the peers that are installed."""
        return (OURS, *(peer for peer in self.peers if installed(peer)))

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the peers that are not installed."""
        return tuple(peer for peer in self.peers if not installed(peer))

    def form(self, library: str, inputs: InputFactory) -> tuple[Call, Callable[[], Any]]:
        """Return the call with the input tensors, and the function that runs it by a library, OURS or a peer."""
        made = self.make(inputs)
        if library == OURS:
            return made, lambda: on_triton(made)
        return made, peers.form(library, self.peers[library], [made])


OPERATIONS = {
    "KDA": Operation(_kda, {"fla": "delta_rule, KDA"}),
    "GDN": Operation(_gdn, {"fla": "delta_rule, a gate a head"}),
    "PaTH": Operation(_path, {"fla": "path_attention"}),
    "Mesa": Operation(_mesa, {"fla": "mesa"}),
    "NSA": Operation(_nsa, {"fla": "nsa_attention, groups of 16"}),
    "short convolution": Operation(_short_conv, {"fla": "short_conv"}),
    "decoding, KDA": Operation(_kda_step, {"fla": "delta_rule, KDA, a step"}, SEQUENCES, 1, WAYS[:1]),
}
