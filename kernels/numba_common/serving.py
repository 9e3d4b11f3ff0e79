"""Checks of the calls that a kernel of Numba serves; Numba itself is imported late, as that takes time."""

from __future__ import annotations

import functools
import importlib

import torch
from torch import Tensor


def refusal(*tensors: Tensor) -> str | None:
    """Return why Numba's kernels cannot take these tensors, of any shape [...]; None if they can: fp32 on a CPU."""
    for x in tensors:
        if x.device.type != "cpu":
            return f"needs tensors on a CPU, got {x.device.type}"
        if x.dtype != torch.float32:
            return f"needs float32, got {str(x.dtype).removeprefix('torch.')}"
    return fault()


@torch.compiler.assume_constant_result
def fault() -> str | None:
    """Return why Numba compiles nothing in this process; None if it does."""
    return _fault()


@functools.cache
def _fault() -> str | None:
    try:
        numba = importlib.import_module("numba")
    except (
        Exception
    ) as error:  # it may be missing, or not get on with the versions of other packages that it finds
        return f"numba cannot be imported: {error}"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None
