"""Timeline attention as its definition has it: one mask over all pairs of tokens."""

from __future__ import annotations

from torch import Tensor

from kernels.ops.attention.reference import masked_attention, visible
from kernels.rotary import rope


def timeline_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None = None,
    weight: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention in which token i sees j ≤ i of its sequence iff head h put both on one timeline; memory T × T.

    The only form that checks the assignment: raises ValueError if a value is outside [0, n_timelines).

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    if assignment.numel() and not 0 <= int(assignment.min()) <= int(assignment.max()) < n_timelines:
        raise ValueError(
            f"assignment must lie in [0, {n_timelines}), got {assignment.min():d} … {assignment.max():d}"
        )
    time = q.shape[1]
    heads_first = assignment.transpose(1, 2)
    together = heads_first[..., :, None] == heads_first[..., None, :]
    mask = together & visible(time, time, True, None, cu_seqlens, q.device)
    if rope_base is not None:
        group = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
        position = (mask.sum(dim=-1) - 1).transpose(1, 2)
        q, k = rope(q, position, rope_base), rope(k, position, rope_base)
    out = masked_attention(q, k, v, mask, scale)
    return out if weight is None else out * weight[..., None].to(out.dtype)
