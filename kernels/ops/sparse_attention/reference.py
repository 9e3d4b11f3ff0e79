"""Sparse attention as its definition has it: a mask over all pairs of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.attention import masked_attention
from kernels.ops.sparse_attention.select import selected_mask
from kernels.packing import token_sequences


def sparse_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention o_t = σ(l_t) ⊙ Σ_{s ∈ S_t} softmax_s(scale·q_t·k_s)·v_s, 0 where S_t is empty; memory Tq × Tk a head.

    The only form that checks the indices: raises ValueError for one that is no position, that comes twice,
    or that lies outside the query's sequence.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], indices integer [B, Tq, n], gate_logits [B, Tq, H, V] or None
    -> [B, Tq, H, V] in q's dtype, computed in at least fp32.
    """
    keys = k.shape[1]
    _check(indices, keys, cu_seqlens)
    mask = selected_mask(indices, keys)
    empty = ~mask.any(-1)
    out = masked_attention(q, k, v, (mask | empty.unsqueeze(-1)).unsqueeze(1), scale)
    out = out.masked_fill(empty[..., None, None], 0)
    if gate_logits is None:
        return out
    wide = torch.promote_types(out.dtype, torch.float32)
    return (out * torch.sigmoid(gate_logits.to(wide))).to(out.dtype)


def _check(indices: Tensor, keys: int, cu_seqlens: Tensor | None) -> None:
    if indices.numel() == 0:
        return
    if int(indices.min()) < -1 or int(indices.max()) >= keys:
        raise ValueError(f"indices must be in [−1, {keys}), got {indices.min():d} … {indices.max():d}")
    ordered = indices.sort(-1).values
    if bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()):
        raise ValueError("indices name a key twice for one query")
    if cu_seqlens is not None:
        sequence = token_sequences(cu_seqlens, keys)
        own = sequence[None, :, None].expand_as(indices)
        if bool(((sequence[indices.clamp_min(0)] != own) & (indices >= 0)).any()):
            raise ValueError("indices name a key of another sequence")
