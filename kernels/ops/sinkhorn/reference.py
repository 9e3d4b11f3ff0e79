"""Sinkhorn-Knopp by its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn_reference(raw: Tensor, *, iters: int) -> Tensor:
    """Compute exp(raw), then divide columns and rows by their sums, in turn.

    raw [..., n, n], any floating dtype; iters: how often both are divided -> [..., n, n] in at least fp32.
    """
    m = raw.to(torch.promote_types(raw.dtype, torch.float32)).exp()
    for _ in range(iters):
        m = m / m.sum(-2, keepdim=True)
        m = m / m.sum(-1, keepdim=True)
    return m
