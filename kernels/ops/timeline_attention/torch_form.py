"""Timeline attention over sorted tokens, by PyTorch's attention in segments or a library's for packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.dispatch import Operation
from kernels.indices import sort_by_group
from kernels.ops.attention import segment_attention
from kernels.packing import boundaries, token_sequences
from kernels.rotary import angle_dtype, angles, rotate

# Tokens in the order of their timelines.

MAX_TIMELINES = 64
"""A counting sort reads its tokens once a timeline: beyond a few dozen, a comparison sort is faster."""


@dataclass(frozen=True)
class Timelines:
    """The tokens of all heads, [B·T·H], sorted by (sequence, head, timeline) and, within those, by time.

    order       int64 [M], M = B·T·H: for every place in the sorted axis, its flat (b, t, h)
    places      int64 [M], its inverse
    positions   int64 [B, T, H], the token's position inside its timeline
    cu_seqlens  int32 [S+1], the timelines as segments of the sorted axis; S = sequences · H · n_timelines
    """

    order: Tensor
    places: Tensor
    positions: Tensor
    cu_seqlens: Tensor


def sort_timelines(assignment: Tensor, n_timelines: int, cu_seqlens: Tensor | None) -> Timelines:
    """Sort the tokens of all heads by timeline; can be traced, as `sort_by_group` can.

    assignment  integer [B, T, H], values in [0, n_timelines), not checked
    """
    batch, time, heads = assignment.shape
    cu = boundaries(assignment, cu_seqlens)
    sequence = token_sequences(cu, batch * time).view(batch, time, 1)
    head = torch.arange(heads, device=assignment.device)
    segment = ((sequence * heads + head) * n_timelines + assignment.long()).flatten()
    by_timeline = sort_by_group(segment, (cu.shape[0] - 1) * heads * n_timelines)
    places = by_timeline.places()
    positions = (places - by_timeline.offsets[segment]).view(batch, time, heads)
    return Timelines(by_timeline.order, places, positions, by_timeline.offsets.to(torch.int32))


# Sort, rotate, attend within segments, sort back, weigh. Work T²/n_timelines.

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


# By a library's kernel for packed sequences, of which every timeline is one.


def register_plugin(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of timeline attention."""

    def run(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **options) -> Tensor:
        attend = partial(attend_by_plugin, plugin, q.shape[1])
        return timeline_attention_sorted(q, k, v, assignment, attend=attend, **options)

    def refuses(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **_) -> str | None:
        return plugin.refuses(q, k, v)

    operation.register(name, run, refuses=refuses, suits=suits)


def attend_by_plugin(
    plugin, longest: int, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float
) -> Tensor:
    """Attention [M, 1, V] within timelines of at most `longest` tokens; q, k [M, 1, K], v [M, 1, V].

    Finding the longest timeline would wait for the GPU; T bounds it and costs only idle blocks.
    """
    return plugin.packed_attention(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True, window=None, scale=scale
    )
