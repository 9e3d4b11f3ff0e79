"""Linear maps: the projection back into the residual stream, the std of new weights, and products in fp32."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02


class OutputProjection(nn.Linear):
    """A projection back into the residual stream; its own class because it starts smaller (std 0.02/√(2N))."""


def output_std(depth: int) -> float:
    """The standard deviation with which output projections of a model of N layers start: 0.02/√(2N)."""
    return INIT_STD / math.sqrt(2 * depth)


def fp32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ in at least fp32, under autocast too: for routing logits, gates and decays."""
    wide = torch.promote_types(x.dtype, torch.float32)
    # The meta device has no autocast to switch off.
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return F.linear(x.to(wide), weight.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))
