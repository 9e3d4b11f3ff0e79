"""Timeline attention with its routing in kernels: tokens are sorted, gathered and rotated, attended to, put back.

sort      a counting sort (triton_sort.py): the place of every token, and its position inside its timeline
gather    a program has BM places of the sorted axis, reads q, k and v of their tokens, rotates
          q and k by their positions and writes all three; angles are computed once for both (triton_routing.py)
attend    over segments, by the best kernel that takes the call
put back  every token's output from its place, times its weight (triton_routing.py)
"""

from __future__ import annotations

from torch import Tensor

from kernels.ops.attention.torch_ops import segment_attention
from kernels.ops.timeline_attention.plugin_backend import attend_by_plugin
from kernels.ops.timeline_attention.triton_routing import gather, put_back
from kernels.ops.timeline_attention.triton_sort import sort_timelines_triton
from kernels.plugins import flash, varlen


def timeline_attention_triton(
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
) -> Tensor:
    """Compute `kernels.timeline_attention` on a GPU; routing reads and writes q, k, v and o once each way.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    timelines = sort_timelines_triton(assignment, n_timelines, cu_seqlens)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = _attend(*gather(q, k, v, timelines, rope_base), timelines.cu_seqlens, scale, q.shape[1])
    return put_back(out, timelines, tuple(q.shape[:3]), weight)


def _attend(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, scale: float, longest: int) -> Tensor:
    """Attention [M, 1, V] within timelines, by a fused kernel where one takes the call."""
    for plugin in (varlen, flash):
        if plugin.refuses(q, k, v) is None:
            return attend_by_plugin(plugin, longest, q, k, v, cu, scale)
    return segment_attention(q, k, v, cu, scale=scale)
