"""The gradients of attention over a selection that is known, a block of queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import masks
from kernels.ops.indexed_attention import layout
from kernels.ops.indexed_attention.fused_tensors import Output
from kernels.ops.indexed_attention.torch_forward import blocks, rows_of

FAINTEST = -60.0
"""Weights below e^−60 count as that: products of smaller ones may be denormal in fp32, which is slow."""


def attend_backward(
    grad: Tensor, out: Output, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k, v from that of o, grad [B, T, H, V].

    The weights are computed again as exp(q·k − lse), and ∂scores = w ⊙ (∂o·v − ∂o·o): both differences are one
    product's, of factors with one more column.
    """
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    d_out, o = layout.by_kv_head(grad, kv_heads), layout.by_kv_head(out.o, kv_heads)
    queries = layout.by_kv_head(q * scale, kv_heads)
    keys, values = layout.keys_by_head(k), layout.keys_by_head(v)
    keys_t, values_t = (layout.with_column(x, 1.0).mT.contiguous() for x in (keys, values))
    shifted = layout.with_column(queries, -out.lse)
    centred = layout.with_column(d_out, -(d_out * o).sum(-1, keepdim=True))
    dq, dk, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    for block in blocks(q):
        rows, seen = rows_of(block, group), slice(block.begin, block.end)
        mask = masks.unpack(block.rows(out.bits), block.end, q.dtype)[:, None, :, None]
        weights = torch.bmm(shifted[:, rows], keys_t[:, :, seen]).clamp_(FAINTEST, 1.0).exp_()
        weights.view(len(q), kv_heads, mask.shape[2], group, -1).mul_(mask)
        d_scores = torch.bmm(centred[:, rows], values_t[:, :, seen]).mul_(weights)
        dq[:, rows] = torch.bmm(d_scores, keys[:, seen])
        dk[:, seen].baddbmm_(d_scores.mT, queries[:, rows])
        dv[:, seen].baddbmm_(weights.mT, d_out[:, rows])
    return (
        layout.by_query(dq.mul_(scale), q.shape, kv_heads),
        layout.keys_by_position(dk, kv_heads),
        layout.keys_by_position(dv, kv_heads),
    )
