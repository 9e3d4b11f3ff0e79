"""Indexed attention as its three operations, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.ops.indexer_kl import indexer_kl
from kernels.ops.lightning_topk import lightning_topk
from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.ops.sparse_attention import sparse_attention


def composed(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`kernels.indexed_attention` with this backend of `lightning_topk`, `sparse_attention` and `indexer_kl`.

    The function returned takes q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], q_idx [B, Tq, HI, DI],
    k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI] and tau [], and returns o [B, Tq, H, V] and the loss [].
    """

    def run(
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
        indexer, options = (q_idx, k_idx, w_idx, bias), {"cu_seqlens": cu_seqlens, "backend": backend}
        indices = lightning_topk(*indexer, k=rule, scores=scores, **options)
        o = sparse_attention(q, k, v, indices, gate_logits=gate_logits, scale=scale, **options)
        if backend == "triton" and q.shape[1] < k.shape[1]:
            options["backend"] = "torch"  # the loss of fewer queries than keys has no Triton form
        return o, indexer_kl(q, k, *indexer, tau, indices=indices, scale=scale, scores=scores, **options)

    return run
