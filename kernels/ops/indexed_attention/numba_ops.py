"""Numba's form: every query reads its own keys alone, compiled for the processor at hand."""

from __future__ import annotations

from torch import Tensor

from kernels.numba_common import refusal
from kernels.ops.indexed_attention.operators import fused
from kernels.ops.lightning_topk import AdaptiveK


def indexed_attention_numba(
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
    cu_seqlens: None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.indexed_attention` for what `refuses_numba` does not refuse; shapes as there."""
    options = {"rule": rule, "gate_logits": gate_logits, "scale": scale, "scores": scores}
    return fused(q, k, v, q_idx, k_idx, w_idx, bias, tau, form="numba", **options)


def refuses_numba(
    q: Tensor, k: Tensor, v: Tensor, *indexer: Tensor, cu_seqlens: Tensor | None = None, **_options
) -> str | None:
    """Return why Numba cannot serve a call of `indexed_attention`, None if it can."""
    if q.shape[1] != k.shape[1]:
        return f"needs as many queries as keys, got {q.shape[1]} and {k.shape[1]}"
    if cu_seqlens is not None:
        return "takes no packed sequences"
    return refusal(q, k, v, *indexer)
