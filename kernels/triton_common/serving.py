"""Checks of the calls that a Triton kernel serves, with reasons; Triton itself is imported late, as that takes time."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.triton_common.ptxas import choose_ptxas

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_WIDTH = 256
"""The widest head that a tile holds; narrower ones need not be powers of two."""


@torch.compiler.assume_constant_result
def fault() -> str | None:
    """Return why there is no Triton in this process; None if there is."""
    return _fault()


@functools.cache
def _fault() -> str | None:
    try:
        importlib.import_module("triton")
    except Exception as error:  # it may be missing, or lack a part of its own
        return f"triton cannot be imported ({error}); pip install triton"
    return None


def interpreted() -> bool:
    """Say whether kernels run in Triton's interpreter: TRITON_INTERPRET=1 was set before they were imported."""
    if fault() is not None:
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def refusal(*tensors: Tensor | None, widths: tuple[int, ...] = ()) -> str | None:
    """Return why Triton kernels cannot take these tensors, of any shape [...] or None; None if they can.

    widths: sizes that a tile has to hold whole, such as head widths.
    """
    if (reason := fault()) is not None:
        return reason
    for x in tensors:
        if x is not None and x.is_floating_point() and (reason := _refuses_one(x)):
            return reason
    if max(widths, default=0) > MAX_WIDTH:
        return f"needs widths of at most {MAX_WIDTH}, got {max(widths)}"
    return None


def _refuses_one(x: Tensor) -> str | None:
    if x.is_meta:
        return "needs tensors with data, got meta"
    if x.dtype not in DTYPES:
        return f"needs bfloat16, float16 or float32, got {str(x.dtype).removeprefix('torch.')}"
    if x.is_cuda:
        return None
    if not interpreted():
        return (
            f"needs CUDA tensors, got {x.device.type}; to check kernels on a CPU, slowly, set TRITON_INTERPRET=1 "
            "before Python starts"
        )
    if x.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 matrices wrongly; check in float32 or float16"
    return None


def lazily(module: str, name: str) -> Callable:
    """Return the function `name` of `module`, imported at its first call: importing Triton takes time.

    torch.compile does not trace it: a kernel is compiled already, and choosing its tiles is ordinary Python.
    """

    @functools.cache
    def load() -> Callable:
        choose_ptxas()
        return torch.compiler.disable(getattr(importlib.import_module(module), name))

    def call(*args, **options):
        return load()(*args, **options)

    return call
