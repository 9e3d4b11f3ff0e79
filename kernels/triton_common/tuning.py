"""Tile sizes of a kernel: from the table of its device, else timed once and stored, else (interpreter) fixed.

The table, tuned.toml, has a section a device: kernel -> shape class -> tile sizes, warps and stages. `record` writes
there what Triton's autotuner has chosen in this process.
"""

from __future__ import annotations

import contextlib
import functools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import triton

TABLE = Path(__file__).with_name("tuned.toml")


def name_of(kernel) -> str:
    """Return the name under which tables and recordings keep a kernel: its operation and function, "mesa._solve".

    The file of an operation is no part of it, so that code can move within kernels/ops/NAME/ and to NAME_triton.py.
    A kernel that several operations share has the folder's name, "triton_common._sum_rows"; one from outside
    `kernels` keeps its module.
    """
    module, function = kernel.fn.__module__, kernel.fn.__name__
    room = __name__.removesuffix("triton_common.tuning")
    if not module.startswith(room):
        return f"{module}.{function}"
    parts = module.removeprefix(room).split(".")
    owner = parts[1] if parts[0] == "ops" and len(parts) > 1 else parts[0]
    return f"{owner.removesuffix('_triton')}.{function}"


class Tuned:
    """A `@triton.jit` kernel with the launch configurations that it may run with.

    kernel   the jitted function; writes its outputs whole, so that timing it twice changes nothing
    configs  tile sizes, warps and stages, the safest first, which the interpreter takes
    key      names of the arguments that make a shape class, with the tensors' dtypes: another value is timed anew

    Used as `tuned[grid](...)`; the grid may be a function of the tile sizes, as with `triton.autotune`.
    """

    all: ClassVar[list[Tuned]] = []
    afresh: ClassVar[bool] = False  # time what stands in the table, too
    exhaustive: ClassVar[bool] = False  # launch every configuration, for those who compile instead of running

    def __init__(self, kernel, configs: list[triton.Config], key: list[str]) -> None:
        self.kernel, self.configs, self.key = kernel, configs, key
        self.name = name_of(kernel)
        self._refuse_another_of_that_name()
        Tuned.all.append(self)

    def _refuse_another_of_that_name(self) -> None:
        """Raise ValueError if another kernel has this name: each would be launched as the other was tuned."""
        code = self.kernel.fn.__code__  # equal, too, for the function of a module that is imported again
        for other in Tuned.all:
            if other.name == self.name and other.kernel.fn.__code__ != code:
                files = f"{other.kernel.fn.__module__} and {self.kernel.fn.__module__}"
                raise ValueError(f"two kernels are called {self.name}, in {files}: rename one of them")

    def __getitem__(self, grid):
        return functools.partial(self._launch, grid)

    @functools.cached_property
    def autotuned(self):
        """The kernel behind Triton's own autotuner, which stores its timings on disk."""
        return triton.autotune(self.configs, self.key, cache_results=True)(self.kernel)

    def _launch(self, grid, *args, **options) -> None:
        if Tuned.exhaustive:
            self._launch_all(grid, args, options)
        elif (config := self._known(args, options)) is not None:
            self.kernel[grid](*args, **options, **config.all_kwargs())
        else:
            self.autotuned[grid](*args, **options)

    def _launch_all(self, grid, args: tuple, options: dict) -> None:
        """Launch every configuration; one that needs more than the device has is left out, as the autotuner does."""
        for config in self.configs:
            with contextlib.suppress(triton.runtime.errors.OutOfResources):
                self.kernel[grid](*args, **options, **config.all_kwargs())

    def _known(self, args: tuple, options: dict) -> triton.Config | None:
        """The configuration that needs no timing, if there is one."""
        if len(self.configs) == 1 or triton.knobs.runtime.interpret:
            return self.configs[0]
        if Tuned.afresh:
            return None
        named = {**dict(zip(self.kernel.arg_names, args, strict=False)), **options}
        dtypes = [str(named[name].dtype) for name in named if hasattr(named[name], "dtype")]
        shape = self._shape([named[name] for name in self.key], dtypes)
        return _table(torch.cuda.get_device_name()).get((self.name, shape))

    def chosen(self) -> dict[str, dict[str, Any]]:
        """Return what the autotuner has chosen for each shape class so far: tile sizes, warps and stages."""
        if "autotuned" not in self.__dict__:
            return {}
        # The autotuner's keys are the values of `key`, and then dtypes.
        return {
            self._shape(values[: len(self.key)], values[len(self.key) :]): {
                **config.kwargs,
                "num_warps": config.num_warps,
                "num_stages": config.num_stages,
            }
            for values, config in self.autotuned.cache.items()
        }

    def _shape(self, values: Sequence[Any], dtypes: Sequence[str]) -> str:
        """The shape class as the table has it: values of the key, and the floating dtypes among the tensors."""
        floating = [name.removeprefix("torch.") for name in dtypes if "float" in name]
        named = [f"{name}={value}" for name, value in zip(self.key, values, strict=True)]
        return ",".join([*named, "+".join(dict.fromkeys(floating))])


@contextlib.contextmanager
def afresh() -> Iterator[None]:
    """While inside, kernels are timed again, those in the table too."""
    Tuned.afresh = True
    try:
        yield
    finally:
        Tuned.afresh = False


@contextlib.contextmanager
def every_configuration() -> Iterator[None]:
    """While inside, a launch of a tuned kernel is one of each of its configurations; nothing is timed."""
    Tuned.exhaustive = True
    try:
        yield
    finally:
        Tuned.exhaustive = False


def record(device: str, path: Path = TABLE) -> int:
    """Add to the table what the autotuner has chosen in this process for `device`; return the number of entries."""
    table = tomllib.loads(path.read_text()) if path.exists() else {}
    count = 0
    for tuned in Tuned.all:
        for shape, entry in tuned.chosen().items():
            table.setdefault(device, {}).setdefault(tuned.name, {})[shape] = entry
            count += 1
    if count:
        path.write_text(_toml(table))
        _table.cache_clear()
    return count


def _toml(table: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> str:
    lines = []
    for device, kernels in sorted(table.items()):
        for kernel, shapes in sorted(kernels.items()):
            lines.append(f'\n["{device}"."{kernel}"]')
            for shape, entry in sorted(shapes.items()):
                values = ", ".join(f"{name} = {_value(x)}" for name, x in entry.items())
                lines.append(f'"{shape}" = {{ {values} }}')
    return "\n".join(
        ["# Launch configurations by device, kernel and shape class; written by job=gpu.", *lines, ""]
    )


def _value(x: Any) -> str:
    return str(x).lower() if isinstance(x, bool) else f'"{x}"' if isinstance(x, str) else str(x)


@functools.cache
def _table(device: str) -> dict[tuple[str, str], triton.Config]:
    """(kernel, shape class) -> configuration, of the device's section in the table."""
    kernels = tomllib.loads(TABLE.read_text()).get(device, {}) if TABLE.exists() else {}
    return {
        (kernel, shape): triton.Config(
            {name: value for name, value in entry.items() if name not in ("num_warps", "num_stages")},
            num_warps=entry["num_warps"],
            num_stages=entry["num_stages"],
        )
        for kernel, shapes in kernels.items()
        for shape, entry in shapes.items()
    }
