"""PyTorch's form: fused where that is cheaper than the three operations apart."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.ops.indexed_attention.composed import composed
from kernels.ops.indexed_attention.operators import fused
from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.ops.sparse_attention.select import gathers


def indexed_attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    rule: AdaptiveK,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.indexed_attention`: fused where a mask over all keys is cheaper than copies of the selected.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI],
    bias [HI], tau [], gate_logits [B, Tq, H, V] or None -> o [B, Tq, H, V] in q's dtype, the loss [] in at least fp32.
    """
    options = {"rule": rule, "gate_logits": gate_logits, "scale": scale, "scores": scores}
    compute = functools.partial(fused, form="torch") if _fuses(q, k, rule, cu_seqlens) else composed("torch")
    return compute(q, k, v, q_idx, k_idx, w_idx, bias, tau, cu_seqlens=cu_seqlens, **options)


def _fuses(q: Tensor, k: Tensor, rule: AdaptiveK, cu_seqlens: Tensor | None) -> bool:
    """Return whether the fused form serves: fp32 or fp64 on a CPU, one length, too many keys selected to copy them."""
    if q.shape[1] != k.shape[1]:
        return False
    plain = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return plain and cu_seqlens is None and not gathers(rule.widest, k.shape[1], q.shape[2] // k.shape[2])
