"""Softmax attention: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, only_when_named
from kernels.ops.attention.plugin_backend import register_plugin
from kernels.ops.attention.reference import attention_reference
from kernels.ops.attention.torch_ops import attention_torch
from kernels.plugins import flash, varlen

__all__ = ["attention"]


def _packed_or_windowed(q, k, v, *, window=None, cu_seqlens=None, **_) -> bool:
    return window is not None or cu_seqlens is not None


OPERATION = Operation("attention")
# PyTorch's dense SDPA picks among several kernels by itself; varlen is for what it cannot express.
register_plugin(OPERATION, "varlen", varlen, suits=_packed_or_windowed)
OPERATION.register("torch", attention_torch, suits=always)
register_plugin(OPERATION, "flash_attn", flash, suits=only_when_named)
OPERATION.register("reference", attention_reference, suits=only_when_named)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention with grouped heads, sliding windows and packed sequences.

        o_i = Σ_j softmax_j(scale · q_i·k_j) · v_j     over the keys j that query i sees

    q           [B, Tq, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    k, v        [B, Tk, Hkv, K], [B, Tk, Hkv, V]; Hkv divides H. Query i stands at position i + Tk − Tq: a
                shorter q aligns with the end of k
    causal      keys after the query are hidden (then Tq ≤ Tk)
    window      the number of keys a query sees, itself included; needs causal
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1], 0 … T: B = 1, Tq = Tk, and tokens [cu[i], cu[i+1]) are a sequence of their own
    backend     auto, torch (SDPA), varlen (PyTorch's FlashAttention: CUDA, 16 bit), flash_attn (the package,
                version 2, 3 or 4), reference (definition, any dtype)
    returns     [B, Tq, H, V] in q's dtype (under autocast: autocast's)

    Softmax in at least fp32. Memory is linear in T, except for `reference`.
    Raises ValueError for shapes that do not fit, and for a backend that is unknown or cannot serve the call.
    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 (grouped heads).
    """
    check_attention("attention", q, k, v, causal=causal, window=window, cu_seqlens=cu_seqlens)
    q, k, v = in_autocast_dtype(q, k, v)
    return OPERATION(
        q, k, v, causal=causal, window=window, scale=scale, cu_seqlens=cu_seqlens, backend=backend
    )
