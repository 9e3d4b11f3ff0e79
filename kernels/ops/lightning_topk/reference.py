"""Lightning top-k as its definition has it: one query after another, a sorted list of the keys it sees."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.lightning_topk.scores import TIE, AdaptiveK, wide
from kernels.packing import sequence_starts


@torch.no_grad()
def lightning_topk_reference(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None = None,
    share: int = 1,
    key_block: int = 1,
) -> Tensor:
    """Select S_t = top-k_t of I_t over the visible keys, from the latest to the earliest: int32 [B, Tq, n].

    By option of the tile's first query and the tokens since, and whole blocks of keys.
    """
    q_idx, k_idx, w_idx, bias = wide(q_idx, k_idx, w_idx, bias)
    batch, queries, keys = *q_idx.shape[:2], k_idx.shape[1]
    starts = sequence_starts(cu_seqlens, keys, q_idx.device).tolist()
    out = torch.full((batch, queries, -(-k_max // key_block) * key_block + share - 1), -1, dtype=torch.int32)
    for b in range(batch):
        for i in range(queries):
            t = i + keys - queries
            since = (t - starts[t]) % share
            if since:
                out[b, i, 0], out[b, i, 1:] = t, out[b, i - 1, :-1]
                continue
            seen = range(starts[t], t + 1)
            with without_autocast(q_idx):
                similar = q_idx[b, i].double() @ k_idx[b, seen.start : seen.stop].double().T
            logits = (similar * q_idx.shape[-1] ** -0.5).to(q_idx.dtype) + bias[:, None]
            w = w_idx[b, i, :, None]
            heads = w / (1 + torch.exp(-logits)) if scores == "sigmoid" else w * logits.clamp_min(0)
            total = heads.sum(0)
            wanted = k[b, i] if isinstance(k, Tensor) else k(_variance(total / bias.shape[0]))
            count = max(1, min(int(wanted), k_max, len(seen)))
            ranks = _shares(total, w[:, 0]) if scores == "sigmoid" else _cut(total)
            order = sorted(
                seen, key=lambda s, t=t, rank=ranks, first=seen.start: (s == t, rank[s - first], s)
            )
            best = order[-count:]
            if key_block > 1:
                # blocks in the order of their best keys; of the chosen ones all keys that the query sees
                ordered = list(dict.fromkeys((s - seen.start) // key_block for s in reversed(order)))
                chosen = set(ordered[: -(-count // key_block)])
                best = [s for s in seen if (s - seen.start) // key_block in chosen]
            out[b, i, : len(best)] = torch.tensor(sorted(best, reverse=True), dtype=torch.int32)
    return out.to(q_idx.device)


def _shares(scores: Tensor, w: Tensor) -> list[float]:
    """Scores [S] as shares of Σ_j w_j, in fp32 and whole steps of 2^−40; one that is NaN is above all."""
    return ((scores / w.sum()).float().double() / TIE).round().nan_to_num(torch.inf).tolist()


def _cut(scores: Tensor) -> list[float]:
    """Scores [S] in fp32 without their last bit; −0 is 0, and one that is NaN above all that are finite."""
    bits = scores.to(torch.float32).view(torch.int32) & ~1
    return torch.where(scores.isnan(), torch.inf, bits.view(torch.float32)).tolist()


def _variance(scores: Tensor) -> Tensor:
    return (scores - scores.mean()).square().mean()
