"""What a sub-block reads, as a product of a row and a matrix per token."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import without_autocast


def hyper_pre_torch(streams: Tensor, h_pre: Tensor) -> Tensor:
    """[B, T, 1, n] · [B, T, n, D]."""
    wide = torch.promote_types(streams.dtype, torch.float32)
    with without_autocast(streams):
        return (h_pre.to(wide).unsqueeze(-2) @ streams.to(wide)).squeeze(-2).to(streams.dtype)
