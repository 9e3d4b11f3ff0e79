"""Softmax attention over unpacked sequences, in memory linear in their length.

PyTorch's `scaled_dot_product_attention` does the work. This file brings a call into the forms that its fused
kernels take: no mask at all, or a mask for one block of queries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 256
"""Queries a block where a mask is needed."""


def query_block(window: int | None) -> int:
    """Queries a block under a window: about as many as the window, so that about half of a block is masked."""
    return LARGEST_BLOCK if window is None else min(max(window, SMALLEST_BLOCK), LARGEST_BLOCK)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float | None
) -> Tensor:
    """softmax(scale·q·kᵀ + mask)·v; q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V] -> [B, Tq, H, V].

    Query i stands at position i + Tk − Tq. Memory is linear in Tq and Tk, window or not.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    width = v.shape[-1]
    q, k, v = _one_width(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = _attend(q, k, v, causal, window, scale)
    return out.transpose(1, 2)[..., :width]


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if window is not None and window >= keys:
        window = None
    if not causal or (queries == 1 and window is None):
        return _sdpa(q, k, v, scale)
    if queries == keys and window is None:
        return _sdpa(q, k, v, scale, is_causal=True)
    return _attend_in_blocks(q, k, v, window, scale)


def _attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float) -> Tensor:
    queries, offset = q.shape[2], k.shape[2] - q.shape[2]
    block = query_block(window)
    masks: dict[tuple[int, int, int], Tensor] = {}
    blocks = []
    for first in range(0, queries, block):
        rows = min(block, queries - first)
        stop = offset + first + rows
        start = 0 if window is None else max(0, stop - rows - window + 1)
        # Blocks inside the sequence share one mask, so that autograd keeps one and not one a block.
        shape = (rows, stop - start, stop - rows - start)
        if shape not in masks:
            masks[shape] = _mask(*shape, window, q)
        part = q[:, :, first : first + rows], k[:, :, start:stop], v[:, :, start:stop]
        blocks.append(_sdpa(*part, scale, attn_mask=masks[shape]))
    return torch.cat(blocks, dim=2)


def _mask(rows: int, columns: int, ahead: int, window: int | None, like: Tensor) -> Tensor:
    """0 where query i (at column i + ahead) sees key j, else −inf, in the dtype that SDPA converts to."""
    age = torch.arange(rows, device=like.device)[:, None] + ahead - torch.arange(columns, device=like.device)
    visible = age >= 0 if window is None else (age >= 0) & (age < window)
    return torch.zeros(rows, columns, device=like.device, dtype=like.dtype).masked_fill(~visible, -torch.inf)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, **options) -> Tensor:
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=shared, **options)


def _one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zero channels where K ≠ V: the fused kernels want one width, and without them memory is quadratic.

    On the meta device nothing is stored, and operations should be counted as the definition has them.
    """
    missing = q.shape[-1] - v.shape[-1]
    if missing == 0 or q.is_meta:
        return q, k, v
    if missing > 0:
        return q, k, F.pad(v, (0, missing))
    return F.pad(q, (0, -missing)), F.pad(k, (0, -missing)), v
