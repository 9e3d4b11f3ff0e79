"""The launches of a host call: while captured, kernels are compiled instead of run, in every configuration.

Outputs of kernels are then uninitialised memory. What is said of loops holds as far as it follows from sizes, packed
boundaries and what PyTorch's operators make of them; loops over what a kernel would have written are told as unknown.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from experiments.bench.static.compiler import Compiled, Compiler
from experiments.bench.static.control_flow import Executions
from experiments.bench.static.launch_traffic import written_arguments
from experiments.bench.static.scalars import storage_id
from experiments.bench.static.specialization import Specialised, specialise
from experiments.bench.static.ttir import Function, parse


@dataclass(frozen=True)
class Attempt:
    """A launch in one of its configurations. executions: None for a kernel that did not compile."""

    configuration: dict[str, Any]
    compiled: Compiled
    key: str
    launch: Specialised
    grid: tuple[int, ...]
    executions: Executions | None

    @property
    def programs(self) -> int:
        """The number of programs in the grid."""
        return math.prod(self.grid)


@dataclass
class Launch:
    """One launch that the host asks for: the kernel's name, and an attempt for every configuration."""

    kernel: str = ""
    attempts: list[Attempt] = field(default_factory=list)


class Capture:
    """Collects launches; `on_launch` is called with every one that is complete."""

    def __init__(self, compiler: Compiler, on_launch: Callable[[Launch], None]) -> None:
        self.compiler, self.on_launch = compiler, on_launch
        self._open: Launch | None = None
        self._configuration: dict[str, Any] = {}
        self._functions: dict[str, Function] = {}
        self._unread: dict[int, Tensor] = {}  # kept alive: another tensor would take their memory's identity

    def launch(self, kernel: Any, args: tuple, grid: Any, options: dict[str, Any]) -> None:
        """Record a launch of a jitted function: as an attempt of the launch that `each` has open, else by itself."""
        from kernels.triton_common.tuning import name_of

        launch = Launch() if self._open is None else self._open
        launch.kernel = name_of(kernel)
        with _disable_current_modes():
            attempt = self._attempt(specialise(kernel, args, options), grid)
        if attempt.key not in {other.key for other in launch.attempts}:
            launch.attempts.append(attempt)
        if self._open is None:
            self.on_launch(launch)

    def each(self, configurations: list[Any], run: Callable[[Any], None]) -> None:
        """Record a launch with an attempt for each configuration; `run` makes it in the one that it is given."""
        launch = self._open = Launch()
        try:
            for configuration in configurations:
                self._configuration = configuration.all_kwargs()
                run(configuration)
        finally:
            self._open, self._configuration = None, {}
        self.on_launch(launch)

    def _attempt(self, launch: Specialised, grid: Any) -> Attempt:
        sizes = tuple(int(size) for size in (grid(launch.values) if callable(grid) else grid))
        key, compiled = self.compiler(launch)
        executions = None
        if compiled.intermediate:
            if key not in self._functions:
                self._functions[key] = parse(compiled.intermediate)
            executions = Executions(self._functions[key], launch.values, sizes, self._unread)
            self._will_not_be_read(executions, launch.values)
        return Attempt(dict(self._configuration), compiled, key, launch, sizes, executions)

    def _will_not_be_read(self, executions: Executions, values: dict[str, Any]) -> None:
        for name in written_arguments(executions):
            x = values.get(name)
            if isinstance(x, Tensor) and not x.is_floating_point():
                self._unread[storage_id(x)] = x


@contextlib.contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """While inside, launches of Triton kernels, tuned ones in all their configurations, go to `capture` instead."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from kernels.triton_common.tuning import Tuned

    def run(kernel, *args, grid=None, warmup=False, **options) -> None:
        capture.launch(kernel, args, grid, options)

    def tuned(self: Tuned, grid, *args, **options) -> None:
        capture.each(self.configs, lambda one: self.kernel[grid](*args, **options, **one.all_kwargs()))

    def autotuned(self: Autotuner, *args, **options) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configurations = self.prune_configs(options)
        capture.each(configurations, lambda one: self.fn.run(*args, **options, **one.all_kwargs()))

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(Autotuner, "run", autotuned),
        mock.patch.object(Tuned, "_launch", tuned),
    ):
        yield
