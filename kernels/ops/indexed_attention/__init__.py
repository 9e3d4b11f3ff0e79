"""Attention to the keys that the lightning indexer selects, and the indexer's loss, as one operation of training.

    S_t  = lightning_topk(q_idx, k_idx, w_idx, bias, k=rule)_t
    o    = sparse_attention(q, k, v, S, gate_logits=gate_logits)
    loss = indexer_kl(q, k, q_idx, k_idx, w_idx, bias, τ, indices=S)

Here are the public function and its backends.

torch_ops.py   the fused operators, and the choice between them and the three operations
torch_form.py  the three operations in a row; the fused form in PyTorch
numba_form.py  the fused form compiled by Numba
triton_ops.py  the three on a GPU, which share the selection's bits and log Σ exp
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, on_cuda, only_when_named
from kernels.ops.indexed_attention.torch_form import composed
from kernels.ops.indexed_attention.torch_ops import (
    indexed_attention_numba,
    indexed_attention_torch,
    refuses_numba,
)
from kernels.ops.lightning_topk import AdaptiveK, choice_options, refuses_selection
from kernels.ops.lightning_topk.scores import check_indexer
from kernels.ops.sparse_attention import check_gate
from kernels.triton_common import lazily, refusal

__all__ = ["indexed_attention"]


def _refuses(
    q: Tensor, k: Tensor, v: Tensor, q_idx: Tensor, k_idx: Tensor, w_idx: Tensor, bias: Tensor, *_args,
    rule: AdaptiveK, **_options,
) -> str | None:  # fmt: skip
    # Of tiles of queries and blocks of keys PyTorch selects, and all else is the same.
    unselected = refuses_selection(q_idx, k_idx, w_idx, bias, k_max=rule.widest)
    return unselected or refusal(q, k, v, widths=(q.shape[-1], v.shape[-1]))


OPERATION = Operation("indexed_attention")
OPERATION.register(
    "triton",
    lazily("kernels.ops.indexed_attention.triton_ops", "indexed_attention_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("numba", indexed_attention_numba, refuses=refuses_numba, suits=always)
OPERATION.register("torch", indexed_attention_torch, suits=always)
OPERATION.register("reference", composed("reference"), suits=only_when_named)


def indexed_attention(
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
    share: int = 1,
    key_block: int = 1,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Attention to the keys that the lightning indexer selects, and the indexer's loss: one training step's work.

        S_t  = lightning_topk(q_idx, k_idx, w_idx, bias, k=rule)_t
        o    = sparse_attention(q, k, v, S, gate_logits=gate_logits)
        loss = indexer_kl(q, k, q_idx, k_idx, w_idx, bias, τ, indices=S)

    The same as these three, which docstrings of theirs define. On a CPU they share what they compute: the indexer's
    scores serve selection, loss and gradient, attention's weights its output and the loss's target. Numba's form reads
    the selected rows where they stand; PyTorch's masks whole blocks where that costs less than copies.

    q, k, v     [B, Tq, H, K], [B, Tk, Hkv, K], [B, Tk, Hkv, V], as `sparse_attention` takes them; a shorter q aligns
                with the end of k
    q_idx, k_idx, w_idx, bias, tau   as `indexer_kl` takes them
    rule        how many keys a query selects
    gate_logits None, or [B, Tq, H, V], as `sparse_attention` takes them
    scale       None: K^(−1/2)
    scores      "sigmoid" or "relu", as in `lightning_topk`
    cu_seqlens  int32 [N+1] for packed sequences (B = 1, Tq = Tk)
    share, key_block   as in `lightning_topk`: one choice for a tile of queries, blocks of keys; the rest is as without
                them, and runs as three operations (on a GPU PyTorch selects)
    backend     auto, numba (fp32 on a CPU, Tq = Tk, nothing packed), torch (fused or not, by cost), triton (what auto
                takes on a GPU; the loss of fewer queries than keys, which has no Triton form, by its torch form), and
                reference (the three operations' forms of that name)
    returns     o [B, Tq, H, V] in q's dtype, and the loss [] in at least fp32, in nats. o is differentiable in q, k and
                v, the loss in the indexer's inputs (once)

    Memory of the fused forms, and of Triton's where it masks: T²/8 bytes for the selection, linear in T for all else.
    Numba's has gradients of keys and values once for each thread where a batch has fewer sequences than threads.
    Raises ValueError for shapes that do not fit or have no token, and for scores or a backend that are unknown;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: DeepSeek-AI 2025, DeepSeek-V3.2, equations 1 to 4; OrthGSA, steps 3.3 to 3.5.
    """
    check_attention("indexed_attention", q, k, v, cu_seqlens=cu_seqlens)
    check_indexer("indexed_attention", q_idx, k_idx, w_idx, bias, cu_seqlens, scores)
    if q.shape[:2] != q_idx.shape[:2] or k.shape[:2] != k_idx.shape[:2] or tau.dim():
        shapes = (
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, q_idx {tuple(q_idx.shape)}, k_idx {tuple(k_idx.shape)}"
        )
        raise ValueError(
            f"indexed_attention needs the same B, Tq and Tk in all arguments and tau [], got {shapes}, tau "
            f"{tuple(tau.shape)}"
        )
    if not q.shape[:2].numel():
        raise ValueError(
            f"indexed_attention needs at least one token, for its mean over tokens, got q {tuple(q.shape)}"
        )
    q, k, v = in_autocast_dtype(q, k, v)
    check_gate(gate_logits, q, v)
    options = {
        "rule": rule,
        "gate_logits": gate_logits,
        "scale": scale,
        "scores": scores,
        "cu_seqlens": cu_seqlens,
        **choice_options("indexed_attention", q, k, share, key_block, cu_seqlens),
    }
    return OPERATION(q, k, v, q_idx, k_idx, w_idx, bias, tau, **options, backend=backend)
