"""The streams after a sub-block, as one product of small matrices per token."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.checks import without_autocast


def hyper_post_torch(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """[B, T, n, n] · [B, T, n, D], and the output's share in one pass."""
    wide = torch.promote_types(streams.dtype, torch.float32)
    with without_autocast(streams):
        mixed = h_res.to(wide) @ streams.to(wide)
        out = torch.addcmul(mixed, h_post.to(wide).unsqueeze(-1), z.to(wide).unsqueeze(-2))
    return out.to(streams.dtype)
