"""The coefficients of hyper-connections by their definition."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast


def hyper_coefficients_reference(
    streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, eps: float, hand_on: bool
) -> tuple[Tensor, ...]:
    """Return σ(s₀·φx̂ + b), 2σ(s₁·φx̂ + b) and s₂·φx̂ + b, with x̂ = vec x / √(mean(x²) + eps).

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m],
    in at least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    n = streams.shape[-2]
    x, phi, scale, bias = (y.to(wide) for y in (streams.flatten(-2), phi, scale, bias))
    with without_autocast(x):
        raw = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)) @ phi.T
    parts = (n, n, len(phi) - 2 * n)
    pre, post, res = (
        s * y + b for s, y, b in zip(scale, raw.split(parts, -1), bias.split(parts), strict=True)
    )
    return torch.sigmoid(pre), 2 * torch.sigmoid(post), res, *([streams] if hand_on else [])
