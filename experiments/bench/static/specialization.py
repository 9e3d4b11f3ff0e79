"""A kernel with the arguments of one launch, as Triton would specialise it: types, constants, divisibility."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.int16: "*i16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.bool: "*i1",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What a launch says beside the kernel's arguments."""


@dataclass(frozen=True)
class Specialised:
    """A launch to compile: Triton's source, the launch's options, and the kernel's arguments by name."""

    source: Any
    options: dict[str, Any]
    values: dict[str, Any]

    @property
    def constants(self) -> dict[str, Any]:
        """The arguments that the kernel declares as constants (`tl.constexpr`), but for those that are None."""
        fixed = {parameter.name for parameter in self.source.fn.params if parameter.is_constexpr}
        names = self.source.fn.arg_names
        given = {names[place]: x for (place,), x in self.source.constants.items()}
        return {name: x for name, x in given.items() if name in fixed and x is not None}


def specialise(kernel: Any, args: tuple, options: dict[str, Any]) -> Specialised:
    """The launch `kernel[grid](*args, **options)` of a `@triton.jit` function."""
    from triton.compiler import ASTSource

    launch = {name: options[name] for name in LAUNCH_OPTIONS if options.get(name) is not None}
    # A kernel may have an argument of an option's name (a loop's stages, say): it gets both, as in Triton.
    given = {name: x for name, x in options.items() if name in kernel.arg_names or name not in LAUNCH_OPTIONS}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **given}
    types, constants, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values.get(parameter.name, parameter.default)
        general = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and not general):
            types[parameter.name], constants[place,] = "constexpr", value
        elif isinstance(value, Tensor):
            types[parameter.name], hints[place,] = _TYPES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, bool):
            types[parameter.name] = "i1"
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i32"
            if value % 16 == 0 and not general:
                hints[place,] = [["tt.divisibility", 16]]
    return Specialised(ASTSource(kernel, types, constants, hints), launch, values)
