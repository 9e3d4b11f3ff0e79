"""Attention over segments through ordinary, differentiable PyTorch operations."""

from __future__ import annotations

from torch import Tensor

from kernels.packing.rectangles import Rectangles
from kernels.sdpa import dense_attention


def segment_attention_eager(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """`segment_attention` with one SDPA call a batch of segments. Reads cu_seqlens on the host."""
    # Without a causal mask padding would be attended to.
    axis = Rectangles.of(cu_seqlens, q.shape[1], may_pad=causal).axis()
    if not axis.shapes:
        return v.new_zeros(*q.shape[:2], v.shape[-1])
    batches = zip(*(axis.spread(x) for x in (q, k, v)), strict=True)
    return axis.collect([dense_attention(*x, causal=causal, window=window, scale=scale) for x in batches])
