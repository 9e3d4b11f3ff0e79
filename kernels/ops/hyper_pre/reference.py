"""The weighted sum of streams, by its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def hyper_pre_reference(streams: Tensor, h_pre: Tensor) -> Tensor:
    """Return y = Σ_i h_pre_i · x_i."""
    wide = torch.promote_types(streams.dtype, torch.float32)
    return (h_pre.to(wide)[..., None] * streams.to(wide)).sum(-2).to(streams.dtype)
