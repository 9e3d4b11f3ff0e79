"""Tensors as Numba's kernels read them: by sequence and KV head, rows filled up with zeros to whole vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.numba_common.layout import WIDTH, by_kv_head, keys_by_head
from kernels.ops.indexed_attention.fused_tensors import Indexer
from kernels.ops.indexed_attention.numba_forward import Attended, Indexed, Learned, Results, Rule
from kernels.ops.indexed_attention.numba_select import TILE
from kernels.ops.lightning_topk.adaptive import AdaptiveK


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
    """`Attended` of all sequences: q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V]."""
    return Attended(by_kv_head(q * scale, k.shape[2]), keys_by_head(k), keys_by_head(v))


def empty_results(q: Tensor, v: Tensor) -> Results:
    """`Results` of all sequences, to be filled."""
    batch, time, heads, _ = q.shape
    o = torch.zeros_like(by_kv_head(q.new_empty(1, 1, heads, v.shape[3]), v.shape[2]))
    bits = q.new_zeros(batch, time, math.ceil(time / 8), dtype=torch.uint8)
    lse = q.new_empty(batch, v.shape[2], time, heads // v.shape[2])
    return Results(o.repeat(batch, 1, time, 1, 1), lse, bits)


def indexed(indexer: Indexer, kind: str) -> Indexed:
    """`Indexed` of all sequences; kind: the scores, "sigmoid" or "relu"."""
    width, time = indexer.q.shape[3], indexer.k.shape[1]
    q, k = (pad(x, (0, -width % WIDTH)).contiguous() for x in (indexer.q * width**-0.5, indexer.k))
    k_t = pad(indexer.k.mT, (0, -time % TILE)).contiguous()
    return Indexed(
        q, k, k_t, indexer.w.contiguous(), indexer.bias.contiguous(), indexer.tau, kind == "sigmoid"
    )


def empty_gradients(index: Indexed, parts: int, learns: bool) -> Learned:
    """`Learned` of all sequences, zeros; k and the sums of each of so many parts; no tokens if nothing `learns`."""
    (batch, time, heads), width = index.w.shape, index.k.shape[2]
    time = time if learns else 0
    q, k, w = (
        index.k.new_zeros(batch, *shape)
        for shape in ((time, heads, width), (parts, time, width), (time, heads))
    )
    return Learned(q, k, w, index.k.new_zeros(batch, parts, 2 + heads, dtype=torch.float64))


def gradients(indexer: Indexer, learned: Learned) -> tuple[Tensor, Indexer]:
    """The loss [] and its gradients in the shapes of the indexer's tensors, means over the batch."""
    batch, _, _, width = indexer.q.shape
    q, k = learned.q[..., :width] * (width**-0.5 / batch), learned.k.sum(1)[..., :width] / batch
    sums = (learned.sums.sum((0, 1)) / batch).to(q.dtype)
    loss, by_tau, by_bias = (
        sums[at].clone() for at in (0, 1, slice(2, None))
    )  # operators' results share nothing
    return loss, Indexer(q, k, learned.w / batch, by_bias, by_tau)


def rule_numbers(rule: AdaptiveK) -> Rule:
    """The rule in numbers."""
    kinds = (rule.rule == "seed", rule.rule == "inverse")
    return Rule(*kinds, rule.base, rule.least, rule.widest, rule.beta, rule.reference)
