"""Attention over segments through ordinary, differentiable PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sdpa import dense_attention
from kernels.segments.plan import make_plan


def segment_attention_eager(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """What `segment_attention` promises, one SDPA call a batch of the plan. Reads cu_seqlens on the host."""
    plan = make_plan(cu_seqlens, q.shape[1], may_pad=causal)
    if not plan.shapes:
        return v.new_zeros(*q.shape[:2], v.shape[-1])
    rows = [segments * length for segments, length in plan.shapes]
    parts = zip(*(_gather(x, plan.source).split(rows) for x in (q, k, v)), strict=True)
    outputs = []
    for shape, part in zip(plan.shapes, parts, strict=True):
        rectangles = (x.unflatten(0, shape) for x in part)
        outputs.append(dense_attention(*rectangles, causal=causal, window=window, scale=scale).flatten(0, 1))
    return _gather(torch.cat(outputs), plan.restore)


def _gather(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else x.index_select(0, index)
