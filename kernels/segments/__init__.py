"""Self-attention within contiguous segments of one token axis: packed sequences, timelines."""

from __future__ import annotations

from torch import Tensor

from kernels.checks import only_sizes
from kernels.segments.eager import segment_attention_eager
from kernels.segments.opaque import segment_attention_op

__all__ = ["segment_attention"]


def segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention in which a token sees only the tokens of its own segment.

    q           [M, H, K]; k [M, Hkv, K]; v [M, Hkv, V]
    cu_seqlens  integer [S+1], 0 = cu[0] ≤ … ≤ cu[S] = M; segment i is [cu[i], cu[i+1]), possibly empty
    returns     [M, H, V]

    Work is Σ n² score entries for segments of length n, apart from padding among segments shorter than 256
    tokens; memory is linear in M. Under `torch.compile` and on the meta device it is one operator, whose
    operations are counted for segments of equal length: M²/S entries.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if only_sizes(q):
        return segment_attention_op(q, k, v, cu_seqlens, causal, window, scale)
    return segment_attention_eager(q, k, v, cu_seqlens, causal=causal, window=window, scale=scale)
