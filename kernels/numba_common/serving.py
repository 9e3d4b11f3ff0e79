"""Checks of the calls that a kernel of Numba serves; Numba itself is imported late, as that takes time."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

INSTALLED = importlib.util.find_spec("numba") is not None


def refusal(*tensors: Tensor) -> str | None:
    """Return why Numba's kernels cannot take these tensors, of any shape [...]; None if they can: fp32 on a CPU."""
    if not INSTALLED:
        return "the numba package is not installed"
    for x in tensors:
        if x.device.type != "cpu":
            return f"needs tensors on a CPU, got {x.device.type}"
        if x.dtype != torch.float32:
            return f"needs float32, got {str(x.dtype).removeprefix('torch.')}"
    return None
