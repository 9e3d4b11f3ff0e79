"""Numbers from a formula: weights and inputs that are the same on every machine and with every release of PyTorch.

A hash of whole numbers, so that matrices made of it have full rank and no two entries follow from each other.
"""

import math
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_MASK = 0xFFFFFFFF
NOTHING = 1e-11
"""Sums below it are rounding: they are written as 0."""


def uniform(name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Numbers in (low, high) that depend on the name and their place alone, fp64."""
    x = torch.arange(math.prod(shape)) + zlib.crc32(name.encode())
    for factor in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        x = (((x ^ (x >> 16)) & _MASK) * factor) & _MASK
        x = x ^ (x >> 15)
    return (low + (high - low) * ((x.double() + 0.5) / 2.0**32)).view(shape)


def whole(name: str, below: int, *shape: int) -> Tensor:
    """Whole numbers from 0 up to `below`, int64, likewise."""
    return uniform(name, *shape, low=0.0, high=below).long()


def fill(module: nn.Module) -> nn.Module:
    """The module in fp64, all parameters from the formula: gains around 1, everything else around 0, nothing 0."""
    module = module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(gain + 0.4 * uniform(name, *parameter.shape))
    return module


def checksum(x: Tensor, name: str = "sum") -> float:
    """Σ of the numbers times weights from the formula: another number, place, sign or unit changes it."""
    x = x.detach().double()
    total = float((x * uniform(name, *x.shape, low=0.5, high=1.5)).sum())
    return 0.0 if abs(total) < NOTHING else total


def shape(x: Tensor | Iterable[int]) -> str:
    """`2x3`; a scalar is `[]`."""
    return "x".join(map(str, x.shape if isinstance(x, Tensor) else x)) or "[]"
