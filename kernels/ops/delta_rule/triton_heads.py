"""Gradients of inputs that several heads share: one of every head first, then their sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common.masked_tiles import (
    load_head_rows,
    store_head_rows,
)


@triton.jit
def _sum_heads(parts, total, TOKENS, WIDTH, GROUP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """total [TOKENS, WIDTH] = Σ over the heads of a group, parts [TOKENS, GROUP, WIDTH]."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    added = tl.zeros((BT, BD), tl.float32)
    for member in range(GROUP):
        added += load_head_rows(parts, token, TOKENS, member, GROUP, column, WIDTH).to(tl.float32)
    store_head_rows(total, added, token, TOKENS, 0, 1, column, WIDTH)


def empty_for_heads(x: Tensor, heads: int) -> Tensor:
    """Allocate the gradient of x [B, T, Hx, D] of every head: x's dtype, or fp32 where heads are yet to be summed."""
    dtype = x.dtype if x.shape[2] == heads else torch.float32
    return torch.empty(*x.shape[:2], heads, x.shape[3], dtype=dtype, device=x.device)


def sum_heads(parts: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x [B, T, Hx, D]: parts [B, T, H, D] summed over the heads that share one of x's."""
    if parts.shape == x.shape:
        return parts
    total, (batch, time, heads, width) = torch.empty_like(x), x.shape
    rows = batch * time * heads
    _sum_heads[(triton.cdiv(rows, 32), triton.cdiv(width, 64))](
        parts, total, rows, width, GROUP=parts.shape[2] // heads, BT=32, BD=64
    )
    return total
