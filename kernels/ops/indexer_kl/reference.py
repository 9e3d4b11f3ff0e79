"""The indexer's loss as its definition has it: every pair of tokens, ordinary autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.attention.reference import visible
from kernels.ops.lightning_topk.scores import wide
from kernels.ops.sparse_attention.select import selected_mask


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
