"""The flash-attn package, if it is installed; imported at the first call that uses it."""

from __future__ import annotations

import importlib.util

from torch import Tensor

from kernels.plugins.limits import flash_refuses

_INSTALLED = importlib.util.find_spec("flash_attn") is not None


def refuses(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> str | None:
    """The reason why flash-attn cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    if not _INSTALLED:
        return "the flash-attn package is not installed"
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
    from flash_attn import flash_attn_varlen_func

    sizes = (-1, -1) if window is None else (window - 1, 0)
    return flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=scale, causal=causal, window_size=sizes
    )
