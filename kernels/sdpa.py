"""PyTorch's scaled_dot_product_attention, with the NaNs that its CPU kernel leaves out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 64
"""Keys below which they may be fewer than a vector of any CPU holds numbers."""


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention [B, H, Tq, V] of q [B, H, Tq, K], k [B, Hkv, Tk, K] and v [B, Hkv, Tk, V]; NaN where a score is.

    Where all scores of a query are NaN, PyTorch 2.13 gives 0 on a CPU for fewer keys than a vector holds numbers (16 of
    fp32), if there is no attn_mask. That is as F.scaled_dot_product_attention takes it; Tq ≤ Tk where is_causal.
    """
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if attn_mask is not None or q.device.type != "cpu" or k.shape[-2] >= FEW:
        return out
    keys = k.isnan().any(-1).repeat_interleave(q.shape[1] // k.shape[1], 1)
    seen = keys.cummax(-1).values if is_causal else keys.any(-1, keepdim=True)
    lost = q.isnan().any(-1) | (seen[..., : q.shape[2]] if is_causal else seen)
    return torch.where(lost.unsqueeze(-1), torch.nan, out)
