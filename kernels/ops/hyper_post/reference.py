"""The streams after a sub-block, by their definition."""

from __future__ import annotations

import torch
from torch import Tensor


def hyper_post_reference(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """Return x_i ← Σ_j h_res_ij · x_j + h_post_i · z.

    streams [B, T, n, D], z [B, T, D], h_res [B, T, n, n] or [n, n], h_post [B, T, n]
    -> [B, T, n, D] in the streams' dtype, computed in at least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    x, z, h_res, h_post = (y.to(wide) for y in (streams, z, h_res, h_post))
    mixed = (h_res[..., None] * x.unsqueeze(-3)).sum(-2)
    return (mixed + h_post[..., None] * z.unsqueeze(-2)).to(streams.dtype)
