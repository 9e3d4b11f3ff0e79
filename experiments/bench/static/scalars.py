"""Arithmetic on single numbers and pointers in Triton's intermediate code, as far as loops and branches depend on it.

A number is an int or a float, a pointer a `Place`; None is what cannot be known without running the kernels: results of
tensors, floating-point numbers in memory, and what a kernel that was not run would have written. Floats have 64 bits
here: a kernel's 32 give the same whole numbers of `floor(a / b)` and `ceil(a / b)` while a < 2²⁴, as sizes are.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.bench.static.ttir import Op

_INTEGERS = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16, torch.bool)


@dataclass(frozen=True)
class Place:
    """An element of a tensor's memory; offset: in elements, from the tensor's first."""

    tensor: Tensor
    offset: int = 0

    def read(self) -> int | None:
        """The integer there; None for other types and outside of the memory."""
        x = self.tensor
        place = x.storage_offset() + self.offset
        if x.dtype not in _INTEGERS or not 0 <= place < x.untyped_storage().nbytes() // x.element_size():
            return None
        return int(torch.as_strided(x, (1,), (1,), place)[0])


def evaluate(
    op: Op, values: dict[str, Any], program: tuple[int, ...], grid: tuple[int, ...], unread: Container[int]
) -> Any:
    """The value of an operation with one result, None where it is not known.

    unread: identities of storages (`storage_id`) whose content a kernel that was not run would have written.
    """
    operands = [values.get(name) for name in op.operands]
    if op.name == "arith.constant":
        return _constant(op.text)
    if op.name in ("tt.get_program_id", "tt.get_num_programs"):
        return (program if op.name.endswith("id") else grid)["xyz".index(op.text.split()[1])]
    if op.name == "tt.load":
        return _load(operands, unread)
    if op.name == "arith.select":
        return None if operands[0] is None else operands[1 if operands[0] else 2]
    if op.name == "arith.andi" and op.types == "i1" and operands.count(None) == 1:
        return next(
            x for x in operands if x is not None
        )  # a loop that may end early by its data: to its last step
    if any(x is None for x in operands) or "tensor<" in op.types:
        return None
    if op.name == "arith.cmpi":
        return int(_COMPARE[re.search(r"cmpi (\w+)", op.text).group(1)](*operands))
    if op.name == "arith.extsi" and ": i1 to" in op.text:
        return -operands[0]
    if op.name == "tt.addptr":
        return Place(operands[0].tensor, operands[0].offset + operands[1])
    function = _FUNCTIONS.get(op.name)
    return function(*operands) if function else None


def storage_id(x: Tensor) -> int:
    """Return a number that tells the memory of one tensor, shared by its views, from that of others."""
    return x.untyped_storage()._cdata


def _constant(text: str) -> int | float | None:
    found = re.match(r"arith\.constant (true|false|-?\d+)(?: : (?:i\d+|index))?$", text)
    if found is not None:
        return int(_TRUTH.get(found.group(1), found.group(1)))
    found = re.match(r"arith\.constant (-?\d+\.\d+e[+-]\d+) : f\d+$", text)
    return None if found is None else float(found.group(1))


def _load(operands: list[Any], unread: Container[int]) -> int | None:
    """A load with its mask, if any, and what stands for places outside of it."""
    place, mask, other = (*operands, None, None)[:3]
    if len(operands) > 1 and mask == 0:
        return other
    if not isinstance(place, Place) or storage_id(place.tensor) in unread:
        return None
    return place.read()


_TRUTH = {"true": 1, "false": 0}


def _same(x: Any) -> Any:
    return x


def _quotient(a: int, b: int) -> int | None:
    """a / b rounded towards zero, as machines divide."""
    return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    return None if b == 0 else a - b * _quotient(a, b)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul,
    "arith.andi": operator.and_, "arith.ori": operator.or_, "arith.xori": operator.xor,
    "arith.divsi": _quotient, "arith.divui": _quotient, "arith.remsi": _remainder, "arith.remui": _remainder,
    "arith.floordivsi": lambda a, b: a // b if b else None, "arith.ceildivsi": lambda a, b: -(-a // b) if b else None,
    "arith.minsi": min, "arith.maxsi": max, "arith.minui": min, "arith.maxui": max,
    "arith.shli": operator.lshift, "arith.shrsi": operator.rshift, "arith.shrui": operator.rshift,
    "arith.addf": operator.add, "arith.subf": operator.sub, "arith.mulf": operator.mul,
    "arith.divf": lambda a, b: a / b if b else None, "math.floor": math.floor, "math.ceil": math.ceil,
    "arith.sitofp": float, "arith.uitofp": float, "arith.fptosi": int, "arith.fptoui": int,
    "arith.extsi": _same, "arith.extui": _same, "arith.trunci": _same, "arith.index_cast": _same,
}  # fmt: skip
