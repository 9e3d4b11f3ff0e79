"""Sparse attention on a GPU: over tiles of all keys, masked (triton_masked.py), or by gathering, whichever costs less.

By gathering there is nothing of size Tq × Tk, and work for the selected keys alone:

    forward   a program has one query and the heads that share a KV head, so that a gathered key serves them all
              in one product; online softmax along the query's list, and the gate, if there is one, before the output is
              written. Saved: inputs, the output and log Σ exp of each head
    backward  p is recomputed from the saved sums. dq goes along the lists again, and
              makes the gate's gradient on the way. For dk and dv the lists are
              inverted by a sort of integers (inverse.py): a program owns BLOCK keys, goes over the queries that
              select any of them, and masks the others; nothing is added atomically, so that results repeat
              bit for bit. Selections that share blocks of keys share products and reads

A group of fewer than 16 heads leaves rows of its tile idle; gathering keys, not products, is what takes time.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.sparse_attention.inverse import BLOCK, selectors
from kernels.ops.sparse_attention.triton_backward import key_gradients_tuned, query_gradient_tuned
from kernels.ops.sparse_attention.triton_forward import forward_tuned
from kernels.ops.sparse_attention.triton_masked import masked_attention
from kernels.ops.sparse_attention.triton_selection import masks, selection_of
from kernels.triton_common.device import padded

MOST_HEADS = 64
"""Query heads of a program; a larger group takes several."""


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, indices, gate, scale):
        q, k, v, indices = (x.contiguous() for x in (q, k, v, indices))
        gate = None if gate is None else gate.contiguous()
        y = q.new_empty(*q.shape[:3], v.shape[-1])
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward_tuned[_grid_of_queries(q, k)](
            q, k, v, indices, gate, y, lse, scale, **_query_sizes(q, k, v, indices)
        )
        ctx.save_for_backward(q, k, v, indices, gate, y, lse)
        ctx.scale = scale
        return y

    @staticmethod
    @first_order
    def backward(ctx, dy):
        q, k, v, indices, gate, y, lse = ctx.saved_tensors
        dy, delta = dy.contiguous(), torch.empty_like(lse)
        do, dgate = (dy, None) if gate is None else (torch.empty_like(dy), torch.empty_like(gate))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        query_gradient_tuned[_grid_of_queries(q, k)](
            q, k, v, indices, gate, y, lse, dy, do, dgate, delta, dq, ctx.scale,
            **_query_sizes(q, k, v, indices),
        )  # fmt: skip
        lists = selectors(indices, k.shape[1])
        blocks = triton.cdiv(k.shape[1], BLOCK)
        key_gradients_tuned[(k.shape[0] * blocks, k.shape[2])](
            q, k, v, lists.first, lists.query, lists.bits, lse, do, delta, dk, dv, ctx.scale,
            BLOCKS=blocks, BS=BLOCK, **_sizes(q, k, v),
        )  # fmt: skip
        return dq, dk, dv, None, dgate, None


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    """Sizes that all kernels share, by their names in triton_forward.py."""
    heads = {"G": q.shape[2] // k.shape[2], "HKV": k.shape[2]}
    widths = {"K": q.shape[3], "V": v.shape[3], "BK": padded(q.shape[3]), "BV": padded(v.shape[3])}
    return {"Tk": k.shape[1], **heads, **widths}


def _query_sizes(q: Tensor, k: Tensor, v: Tensor, indices: Tensor) -> dict[str, int]:
    """Sizes of the kernels by query."""
    sizes = _sizes(q, k, v)
    return {**sizes, "Tq": q.shape[1], "N": indices.shape[2], "BG": min(MOST_HEADS, padded(sizes["G"]))}


def _grid_of_queries(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    group = q.shape[2] // k.shape[2]
    return q.shape[0] * q.shape[1], k.shape[2], triton.cdiv(group, min(MOST_HEADS, padded(group)))


def sparse_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.sparse_attention` on a GPU; indices are positions along the packed axis already.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], indices integer [B, Tq, n], gate_logits [B, Tq, H, V] or None
    -> [B, Tq, H, V] in q's dtype, computed in at least fp32.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if masks(q.shape[2], k.shape[2], k.shape[1], indices.shape[2]):
        selection = selection_of(indices, k.shape[1])
        return masked_attention(q, k, v, selection, gate_logits=gate_logits, scale=scale)[0]
    return _SparseAttention.apply(q, k, v, indices, gate_logits, scale)
