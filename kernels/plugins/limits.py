"""Limits that all FlashAttention kernels put on their inputs, in any package."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_WIDTH = 256


def flash_refuses(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """The reason why a FlashAttention kernel cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    if not q.is_cuda:
        return f"needs CUDA tensors, got {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, got {q.dtype}"
    if q.shape[-1] != v.shape[-1]:
        return f"needs keys and values of one width, got {q.shape[-1]} and {v.shape[-1]}"
    if q.shape[-1] % 8 or q.shape[-1] > MAX_WIDTH:
        return f"needs a head width that is a multiple of 8 and at most {MAX_WIDTH}, got {q.shape[-1]}"
    return None
