"""PaTH attention as its definition has it: every query goes back over the tokens, one at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast


def path_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.path_attention` sequence by sequence; at least fp32, memory T × T a head.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(q.dtype, torch.float32)
    if w is None or beta is None:
        w, beta = torch.zeros_like(k), k.new_zeros(k.shape[:3])
    if g is None:
        g = q.new_zeros(q.shape[:3])
    group = q.shape[2] // k.shape[2]
    k, v, w, beta = (x.repeat_interleave(group, dim=2) for x in (k, v, w, beta))
    lengths = [q.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    sequences = zip(*(x.to(wide).split(lengths, dim=1) for x in (q, k, v, w, beta, g)), strict=True)
    with without_autocast(q):
        return torch.cat([_one_sequence(*x, scale) for x in sequences], dim=1).to(q.dtype)


def _one_sequence(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor, scale: float
) -> Tensor:
    """q, k, w [B, T, H, K], v [B, T, H, V], beta, g [B, T, H] -> [B, T, H, V]."""
    time = torch.arange(q.shape[1], device=q.device)
    walked, forgotten = q, torch.zeros_like(g)  # of query i, at key j: H_{j+1}·…·H_i·q_i and Σ_{s=j+1..i} g_s
    columns = []
    for j in reversed(range(q.shape[1])):
        has_started = (time >= j)[:, None]
        logit = scale * (walked * k[:, j, None]).sum(-1) + forgotten
        columns.append(logit.masked_fill(~has_started, -torch.inf))
        walked = torch.where(
            has_started[..., None], householder(walked, w[:, j, None], beta[:, j, None]), walked
        )
        forgotten = torch.where(has_started, forgotten + g[:, j, None], forgotten)
    if not columns:
        return v
    return torch.einsum("bihj,bjhv->bihv", torch.stack(columns[::-1], -1).softmax(-1), v)


def householder(x: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """H·x = (I − β·w·wᵀ)·x for x, w [..., K] and beta [...]."""
    return x - beta[..., None] * (w * x).sum(-1, keepdim=True) * w
