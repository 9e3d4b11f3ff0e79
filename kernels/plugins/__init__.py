"""Installed libraries as backends: a file each with `refuses(q, k, v, window)` and `packed_attention(...)`.

flash.py   the flash-attn package
varlen.py  PyTorch's own FlashAttention for packed sequences

Here are the limits that they share, and the search for a library's functions.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Limits that all FlashAttention kernels put on their inputs, in any package.

MAX_WIDTH = 256


def flash_refuses(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """The reason why a FlashAttention kernel cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    if not q.is_cuda:
        return f"needs CUDA tensors, got {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, got {q.dtype}"
    if q.shape[-1] != v.shape[-1]:
        return f"needs keys and values of the same width, got {q.shape[-1]} and {v.shape[-1]}"
    if q.shape[-1] % 8 or q.shape[-1] > MAX_WIDTH:
        return f"needs a head width that is a multiple of 8 and at most {MAX_WIDTH}, got {q.shape[-1]}"
    return None


# Functions of libraries that may be absent or broken: imported where they are first needed, with a reason if not.

ABSENT = "is not installed"


@functools.cache
def look_up(module: str, name: str | None = None) -> tuple[Any, str | None]:
    """A function of a library, or where no name is given its module, and None; else None and why it cannot be had.

    The reason goes on from the module's name: ABSENT, or what its import says, as a library that is installed may lack
    a compiled part of its own or a package that it needs.
    """
    try:
        library = importlib.import_module(module)
        # A folder without a file of its own is what another package of that name space left there.
        if (name is None or not hasattr(library, name)) and getattr(library, "__file__", None) is None:
            return None, ABSENT
        return (library, None) if name is None else (getattr(library, name), None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None, ABSENT
        return None, _failed(error)
    except AttributeError as error:
        return None, f"has no {name}" if error.name == name else _failed(error)
    except Exception as error:  # whatever the code of a library raises when it starts
        return None, _failed(error)


def first_of(*places: tuple[str, str]) -> tuple[Callable | None, str | None]:
    """Of several (module, function), as versions of a library have it, the first that can be had; else why none can."""
    reasons = []
    for module, name in places:
        function, why = look_up(module, name)
        if why is None:
            return function, None
        reasons.append(f"{module} {why}")
    return None, "; ".join(reasons)


def _failed(error: Exception) -> str:
    """An error of an import on one line."""
    lines = str(error).splitlines() or [""]
    return f"cannot be imported ({type(error).__name__}: {lines[0]})"
