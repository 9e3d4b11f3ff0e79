"""Indexed attention on a GPU: selection, attention and loss, which share the selection's bits and log Σ exp."""

from __future__ import annotations

from torch import Tensor

from kernels.ops.indexed_attention.torch_form import composed
from kernels.ops.indexer_kl.triton_ops import indexer_kl_triton
from kernels.ops.lightning_topk import AdaptiveK, lightning_topk
from kernels.ops.lightning_topk.triton_ops import selection_triton
from kernels.ops.sparse_attention.triton_masked import masked_attention, masks, selection_of


def indexed_attention_triton(
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
    **choice: int,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.indexed_attention` on a GPU: q, k, v, indexer -> o [B, Tq, H, V] and the loss [].

    The selection is bits from the start: there are no lists. Where tiles do not pay (`masks`), and for fewer queries
    than keys, each operation does its own.
    """
    indexer, options = (q_idx, k_idx, w_idx, bias), {"scores": scores, "cu_seqlens": cu_seqlens}
    if q.shape[1] < k.shape[1] or not masks(q.shape[2], k.shape[2], k.shape[1], rule.widest):
        return composed("triton")(
            q, k, v, *indexer, tau, rule=rule, gate_logits=gate_logits, scale=scale, **options, **choice
        )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if choice:
        indices = lightning_topk(*indexer, k=rule, backend="torch", **options, **choice)
        selection = selection_of(indices, k.shape[1])
    else:
        selection = selection_triton(*indexer, k=rule, **options)
    o, lse = masked_attention(q, k, v, selection, gate_logits=gate_logits, scale=scale)
    loss = indexer_kl_triton(q, k, *indexer, tau, selection=selection, lse=lse, scale=scale, **options)
    return o, loss
