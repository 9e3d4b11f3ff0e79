"""PyTorch's own FlashAttention for packed sequences (torch.nn.attention.varlen)."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from kernels.plugins.limits import flash_refuses

_BUILT_FOR_GPUS = torch.version.cuda is not None
if _BUILT_FOR_GPUS:  # the import takes seconds, and no CPU build can use it
    from torch.nn.attention.varlen import varlen_attn

# Its options grew over releases: windows and grouped heads are not in every one.
_OPTIONS = frozenset(inspect.signature(varlen_attn).parameters) if _BUILT_FOR_GPUS else frozenset()


def refuses(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> str | None:
    """The reason why varlen_attn cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    if not _BUILT_FOR_GPUS:
        return "this PyTorch is a CPU build, and varlen_attn needs CUDA"
    if window is not None and "window_size" not in _OPTIONS:
        return "this PyTorch's varlen_attn has no sliding window"
    if "scale" not in _OPTIONS:
        return "this PyTorch's varlen_attn has no scale"
    return flash_refuses(q, k, v)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """Attention over packed sequences: q [Mq, H, K], k, v [Mk, Hkv, K], cu int32 [N+1] -> [Mq, H, K]."""
    options = {"scale": scale, **_masking(causal, window)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in _OPTIONS:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, **options)


def _masking(causal: bool, window: int | None) -> dict:
    if "window_size" not in _OPTIONS:
        return {"is_causal": causal}
    if not causal:
        return {"window_size": (-1, -1)}
    return {"window_size": (-1 if window is None else window - 1, 0)}
