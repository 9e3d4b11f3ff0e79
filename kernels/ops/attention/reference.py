"""Attention as its definition has it: every score, an explicit mask, a softmax. For reading and for truth."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.packing.boundaries import token_sequences


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention o_i = Σ_j softmax_j(scale·q_i·k_j)·v_j over the keys j that i sees; at least fp32, memory Tq × Tk.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]; window, at least 1: the newest tokens that a query sees;
    cu_seqlens integer [N+1] (B = 1). Returns [B, Tq, H, V] in q's dtype. Query i stands at position i + Tk − Tq.
    """
    mask = visible(q.shape[1], k.shape[1], causal, window, cu_seqlens, q.device)
    return masked_attention(q, k, v, mask, scale)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Attention [B, Tq, H, V] in q's dtype over the keys where a mask is true, computed in at least fp32.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]; mask: bool, broadcast to [B, H, Tq, Tk].
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    with without_autocast(q):
        scores = torch.einsum("bihd,bjhd->bhij", q.to(dtype), k.to(dtype)) * scale
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v.to(dtype)).to(q.dtype)


def visible(
    queries: int,
    keys: int,
    causal: bool,
    window: int | None,
    cu_seqlens: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Return whether query i, which stands at position i + Tk − Tq, sees key j, bool [Tq, Tk]."""
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)[None, :]
    mask = j <= i if causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
    if window is not None:
        mask = mask & (i - j < window)
    if cu_seqlens is not None:
        sequence = token_sequences(cu_seqlens, keys)
        mask = mask & (sequence[:, None] == sequence[None, :])
    return mask
