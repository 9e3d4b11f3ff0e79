"""PyTorch's own FlashAttention for packed sequences (torch.nn.attention.varlen)."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from kernels.dispatch import constant_when_traced
from kernels.plugins import flash_refuses, look_up

MODULE, FUNCTION = "torch.nn.attention.varlen", "varlen_attn"


def refuses(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> str | None:
    """The reason why varlen_attn cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    reason = flash_refuses(q, k, v) or unusable(q.device)
    if reason is None and window is not None and "window_size" not in _options():
        return "this PyTorch's varlen_attn has no sliding window"
    return reason


@constant_when_traced
def unusable(device: torch.device) -> str | None:
    """The reason why varlen_attn serves nothing on a device; None if it serves something."""
    if device.type != "cuda":
        return f"varlen_attn needs a CUDA device, got {device.type}"
    if torch.version.cuda is None:
        return "this PyTorch is not built for CUDA, which varlen_attn needs"
    # Imported here: that takes seconds.
    _, why = look_up(MODULE, FUNCTION)
    if why is not None:
        return f"{MODULE} {why}"
    return None if "scale" in _options() else "this PyTorch's varlen_attn has no scale"


@constant_when_traced
def _options() -> tuple[str, ...]:
    """The names of its arguments, which grew over releases: windows and grouped heads are not in every one."""
    return tuple(inspect.signature(look_up(MODULE, FUNCTION)[0]).parameters)


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
    from torch.nn.attention.varlen import varlen_attn

    known = _options()
    options = {"scale": scale, **_masking(causal, window, known)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, **options)


def _masking(causal: bool, window: int | None, known: tuple[str, ...]) -> dict:
    if "window_size" not in known:
        return {"is_causal": causal}
    if not causal:
        return {"window_size": (-1, -1)}
    return {"window_size": (-1 if window is None else window - 1, 0)}
