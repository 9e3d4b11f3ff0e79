"""The weighted sum of streams, by its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def hyper_pre_reference(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None, eps: float, hand_on: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """Return y = Σ_i h_pre_i · x_i, or with a gain y · (mean(y²) + eps)^(−1/2) ⊙ gain.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None -> y [B, T, D] in the streams' dtype, computed in at
    least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    y = (h_pre.to(wide)[..., None] * streams.to(wide)).sum(-2)
    if gain is not None:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * gain.to(wide)
    y = y.to(streams.dtype)
    return (y, streams) if hand_on else y
