"""Tile sizes of a kernel: from the table of its device, else measured once and kept, else (interpreter) fixed."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import torch
import triton

TABLE = Path(__file__).with_name("tuned.toml")


class Tuned:
    """A `@triton.jit` kernel with the launch configurations that it may run with.

    kernel   the jitted function; writes its outputs whole, so that measuring it twice changes nothing
    configs  tile sizes, warps and stages, in the order of trust; the interpreter takes the first
    key      names of the arguments that make a shape class: another value is measured anew

    Used as `tuned[grid](...)`; the grid may be a function of the tile sizes, as with `triton.autotune`.
    """

    def __init__(self, kernel, configs: list[triton.Config], key: list[str]) -> None:
        self.kernel, self.configs, self.key = kernel, configs, key
        self.name = kernel.fn.__name__

    def __getitem__(self, grid):
        return functools.partial(self._launch, grid)

    @functools.cached_property
    def autotuned(self):
        """The kernel behind Triton's own autotuner, which keeps what it measured on disk."""
        return triton.autotune(self.configs, self.key, cache_results=True)(self.kernel)

    def _launch(self, grid, *args, **options) -> None:
        config = self._known(args, options)
        if config is None:
            self.autotuned[grid](*args, **options)
        else:
            self.kernel[grid](*args, **options, **config.all_kwargs())

    def _known(self, args: tuple, options: dict) -> triton.Config | None:
        """The configuration that needs no measuring, if there is one."""
        if len(self.configs) == 1 or triton.knobs.runtime.interpret:
            return self.configs[0]
        named = {**dict(zip(self.kernel.arg_names, args, strict=False)), **options}
        shape = ",".join(f"{name}={named[name]}" for name in self.key)
        return _table(torch.cuda.get_device_name()).get((self.name, shape))


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
