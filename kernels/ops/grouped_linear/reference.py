"""Grouped products by their definition: every row with a copy of its matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast


def grouped_linear_reference(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Return y_m = W_e · x_m [M, N] in x's dtype, computed in at least fp32, in memory M·N·K.

    Raises ValueError if the counts do not add up to the rows.
    """
    group = torch.arange(len(counts), device=x.device).repeat_interleave(counts.to(x.device))
    if len(group) != len(x):
        raise ValueError(f"grouped_linear: counts add up to {len(group)}, but there are {len(x)} rows")
    wide = torch.promote_types(x.dtype, torch.float32)
    with without_autocast(x):
        return torch.einsum("mnk,mk->mn", weight.to(wide)[group], x.to(wide)).to(x.dtype)
