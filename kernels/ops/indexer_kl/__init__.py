"""The lightning indexer's loss: how far its scores are from attention's weights.

    p_ts = mean_h softmax_s(scale · q_th·k_s)
    loss = mean_t Σ_s p_ts · (log p_ts − log softmax_s(τ·I_ts))

Here are the definition, the public function, its backends and its work for a roofline.

torch_form.py  blocks of queries in PyTorch
triton_ops.py  the same on a GPU, without a matrix of scores
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, on_cuda, only_when_named, without_autocast
from kernels.ops.attention import visible
from kernels.ops.indexer_kl.torch_form import indexer_kl_torch
from kernels.ops.lightning_topk import MOST_HEADS
from kernels.ops.lightning_topk.scores import check_indexer, wide
from kernels.ops.sparse_attention import check_indices
from kernels.ops.sparse_attention.select import selected_mask
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, listed_pairs, nbytes

# The definition: every pair of tokens, ordinary autograd.


def indexer_kl_reference(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """The loss mean_t KL(p_t ‖ softmax(τ·I_t)), over each sequence, then over sequences; memory Tq × Tk × (H + HI).

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], tau [],
    indices [B, Tq, n] or None -> [] in at least fp32, in nats. Source: as `kernels.indexer_kl`.
    """
    q_idx, k_idx, w_idx, bias, tau = wide(q_idx, k_idx, w_idx, bias, tau)
    queries, keys = q.shape[1], k.shape[1]
    mask = visible(queries, keys, True, None, cu_seqlens, q.device).expand(q.shape[0], -1, -1)
    if indices is not None:
        mask = selected_mask(indices, keys)
    with without_autocast(q):
        target = attention_mean(q.detach(), k.detach(), mask, scale)
        similar = torch.einsum("bthd,bsd->btsh", q_idx, k_idx) * q_idx.shape[-1] ** -0.5
        active = torch.sigmoid(similar + bias) if scores == "sigmoid" else torch.relu(similar + bias)
        index = (w_idx.unsqueeze(2) * active).sum(-1)
        chosen = (tau * index).masked_fill(~mask, -torch.inf).log_softmax(-1)
        loss = torch.where(target == 0, 0, target * (target.log() - chosen)).sum(-1)
    if cu_seqlens is None:
        return loss.mean()
    sequences = loss[0].split(cu_seqlens.diff().tolist())
    return torch.stack([sequence.sum() / max(1, len(sequence)) for sequence in sequences]).mean()


def attention_mean(q: Tensor, k: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """The target p_ts: softmax_s(scale·q_t·k_s) over the mask [B, Tq, Tk], averaged over heads, summing to 1."""
    q, k = wide(q, k)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    p = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1).mean(1)
    return p / p.sum(-1, keepdim=True)


# The public function and its backends.

__all__ = ["indexer_kl"]


def _refuses(
    q: Tensor, k: Tensor, q_idx: Tensor, k_idx: Tensor, w_idx: Tensor, bias: Tensor, tau: Tensor, **_options
) -> str | None:
    if q_idx.shape[2] > MOST_HEADS:
        return f"needs at most {MOST_HEADS} index heads, got {q_idx.shape[2]}"
    if q.shape[1] != k.shape[1]:
        return f"needs as many queries as keys, got {q.shape[1]} and {k.shape[1]}"
    if q.dtype != k.dtype:
        return f"needs q and k in one dtype, got {q.dtype} and {k.dtype}"
    return refusal(q, k, q_idx, k_idx, w_idx, bias, tau, widths=(q.shape[-1], q_idx.shape[-1]))


OPERATION = Operation("indexer_kl")
OPERATION.register(
    "triton",
    lazily("kernels.ops.indexer_kl.triton_ops", "indexer_kl_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", indexer_kl_torch, suits=always)
OPERATION.register("reference", indexer_kl_reference, suits=only_when_named)


def indexer_kl(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The divergence between the attention weights and the indexer's scores, its loss.

        p_ts = mean_h softmax_s(scale · q_th·k_s)                      (detached: q, k get no gradient)
        loss = mean_t Σ_s p_ts · (log p_ts − log softmax_s(τ·I_ts))    over each sequence, then over sequences

    with I as in `lightning_topk`, by the same `scores`; s runs over all visible keys (indices None: warm-up), or
    over S_t. The derivative of a ReLU at 0 is 0.

    q, k        [B, Tq, H, K], [B, Tk, Hkv, K], any floating dtype, as attention sees them (rotated). Query i stands
                at position i + Tk − Tq: a shorter q aligns with the end of k
    q_idx, k_idx, w_idx, bias   as in `lightning_topk`
    tau         [], τ > 0; DeepSeek-V3.2 has none, which is 1
    indices     None, or int32/int64 [B, Tq, n] as `lightning_topk` returns them
    scale       None: K^(−1/2)
    scores      "sigmoid", or "relu" as in DeepSeek-V3.2
    cu_seqlens  int32 [N+1] for packed sequences (B = 1, Tq = Tk); an empty one is one of the N, with a loss of 0
    backend     auto, triton (Tq = Tk; what auto takes on a GPU), torch (blocks of queries), reference (Tq × Tk
                memory)
    returns     [] in at least fp32, in nats; differentiable in q_idx, k_idx, w_idx, bias, tau (once)

    Raises ValueError for shapes that do not fit, and for scores or a backend that are unknown;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: DeepSeek-AI 2025, DeepSeek-V3.2, equations 3 and 4, and 1 for the ReLU.
    """
    check_attention("indexer_kl", q, k, k, cu_seqlens=cu_seqlens)
    check_indexer("indexer_kl", q_idx, k_idx, w_idx, bias, cu_seqlens, scores)
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, q_idx {tuple(q_idx.shape)}, k_idx {tuple(k_idx.shape)}"
    if q.shape[:2] != q_idx.shape[:2] or k.shape[:2] != k_idx.shape[:2] or tau.dim():
        raise ValueError(
            f"indexer_kl needs the same B, Tq and Tk in all arguments and tau [], got {shapes}, tau {tuple(tau.shape)}"
        )
    if indices is not None:
        check_indices("indexer_kl", indices, q)
    return OPERATION(
        q,
        k,
        q_idx,
        k_idx,
        w_idx,
        bias,
        tau,
        indices=indices,
        scale=scale,
        scores=scores,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


# Operations and bytes, for a roofline.


def work(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call with gradients: the attention's products once, the indexer's thrice.

    All are made in the forward pass; the backward scales gradients. The kernels compute the attention's
    products and the indexer's scores three times each rather than store them; repetitions are not counted. Pairs are
    those visible in a batch or, of those, as many as the lists have places for; packed sequences have fewer.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], tau [],
    indices [B, Tq, n] or None.
    """
    batch, time, heads, width = q.shape
    pairs = batch * listed_pairs(time, time, time if indices is None else indices.shape[2])
    products = heads * width + 3 * q_idx.shape[2] * q_idx.shape[3]
    learnt = nbytes(q_idx, k_idx, w_idx, bias, tau)
    wide = sum(4 * x.numel() for x in (q_idx, k_idx, w_idx, bias, tau))
    return [
        Work("indexer_kl", "forward", 2 * pairs * products, nbytes(q, k, indices) + learnt + wide),
        Work("indexer_kl", "backward", wide // 4, wide + learnt),
    ]
