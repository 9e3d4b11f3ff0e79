"""Timeline attention as attention over segments: sort, rotate, attend, sort back, weigh. Work T²/n_timelines."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.ops.attention.torch_ops import segment_attention
from kernels.ops.timeline_attention.sort import sort_timelines
from kernels.rotary import angle_dtype, angles, rotate

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""q, k, v [M, 1, D], int32 cu_seqlens [S+1], scale -> [M, 1, V]."""


def timeline_attention_sorted(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None,
    weight: Tensor | None,
    scale: float | None,
    cu_seqlens: Tensor | None,
    attend: Attend,
) -> Tensor:
    """Compute `kernels.timeline_attention` by any attention over segments. Another head is another segment.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    group = q.shape[2] // k.shape[2]
    if group > 1:
        k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    timelines = sort_timelines(assignment, n_timelines, cu_seqlens)
    if rope_base is not None:
        cos, sin = angles(timelines.positions, q.shape[-1], rope_base, angle_dtype(q))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    by_timeline = (x.flatten(0, 2).index_select(0, timelines.order).unsqueeze(1) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = attend(*by_timeline, timelines.cu_seqlens, scale)
    out = out.squeeze(1).index_select(0, timelines.places).unflatten(0, q.shape[:3])
    return out if weight is None else out * weight[..., None].to(out.dtype)


def timeline_attention_torch(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **options) -> Tensor:
    """Compute `kernels.timeline_attention` by PyTorch's SDPA over sorted tokens.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    return timeline_attention_sorted(q, k, v, assignment, attend=_attend, **options)


def _attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float) -> Tensor:
    return segment_attention(q, k, v, cu_seqlens, scale=scale)
