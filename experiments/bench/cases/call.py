"""A call of an operation, and a case: calls that are timed together."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kernels
from experiments.bench.inputs import InputFactory
from kernels.dispatch import Operation
from kernels.triton_common.work import Work

TOKENS = 131_072
"""Batch times length of a case by default."""


@dataclass(frozen=True)
class Call:
    """One operation with its arguments, as `kernels` takes them."""

    operation: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def run(self, backend: str) -> Any:
        """The outputs of the operation on this backend."""
        return getattr(kernels, self.operation)(*self.arguments, **self.options, backend=backend)

    @property
    def registry(self) -> Operation:
        """The operation, with its backends."""
        return importlib.import_module(f"kernels.ops.{self.operation}").OPERATION

    def work(self) -> list[Work] | None:
        """Operations and bytes of its kernels; None where the operation does not count them."""
        name = f"kernels.ops.{self.operation}.work"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return None
        return module.work(*self.arguments, **self.options)

    def bytes(self, mode: str) -> float:
        """The least bytes that its kernels move in a mode, "forward" or "forward+backward"; 0 where not counted."""
        return sum(work.bytes for work in self.work() or [] if work.way in mode.split("+"))

    def tensors(self) -> Iterator[Tensor]:
        """All tensors among the arguments, pairs unpacked."""
        for x in itertools.chain(self.arguments, self.options.values()):
            for y in x if isinstance(x, tuple) else (x,):
                if isinstance(y, Tensor):
                    yield y


@dataclass(frozen=True)
class Case:
    """Calls that are timed together, one after the other.

    tokens: batch times length; length: the only one it has, where it does not sweep; backward: whether there is
    one; torch_limit: longest sequence for the PyTorch forms, past which they would only use up the time; compiled:
    length of suite=compile where `length` is None, enough to launch every kernel
    """

    name: str
    make: Callable[[InputFactory], list[Call]]
    tokens: int = TOKENS
    length: int | None = None
    backward: bool = True
    torch_limit: int = 16_384
    compiled: int = 256

    def calls(self, length: int, tokens: int, device: torch.device, dtype: torch.dtype) -> list[Call]:
        """The calls on sequences of `length`, as many as fit into `tokens`, at least one."""
        return self.make(InputFactory(max(1, tokens // length), length, device, dtype))


def call(operation: str, *arguments: Any, **options: Any) -> Call:
    """A `Call` of an operation, with its arguments and options as in the call itself."""
    return Call(operation, arguments, options)
