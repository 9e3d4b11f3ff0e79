"""Attention through PyTorch's scaled_dot_product_attention, in memory linear in T."""

from __future__ import annotations

from torch import Tensor

from kernels.sdpa import dense_attention
from kernels.segments import segment_attention


def attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.attention` by SDPA: in blocks of queries under a window, by segments where packed."""
    if cu_seqlens is None:
        return dense_attention(q, k, v, causal=causal, window=window, scale=scale)
    packed = segment_attention(q[0], k[0], v[0], cu_seqlens, causal=causal, window=window, scale=scale)
    return packed.unsqueeze(0)
