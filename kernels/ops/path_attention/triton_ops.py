"""PaTH attention on a GPU, in memory linear in T.

forward   saved: the inputs, o and the log-sum-exps. Blocks are prepared (triton_prepare.py), then every query goes
          back over the blocks of keys (triton_forward.py)
backward  blocks are prepared again; span after span of keys is carried through all later blocks and back
          (triton_backward.py); then gradients go back through the preparation (triton_prepare_backward.py); both are
          launched from triton_gradients.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.path_attention.triton_backward import outer_delta
from kernels.ops.path_attention.triton_forward import attend
from kernels.ops.path_attention.triton_gradients import Arriving, SpanGradients, through_blocks
from kernels.ops.path_attention.triton_layout import Inputs, Prepared, Shapes
from kernels.packing.chunks import first_chunks
from kernels.triton_common.gradients import first_order


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, w, beta, g, scale, cu_seqlens):
        tensors = [None if x is None else x.contiguous() for x in (q, k, v, w, beta, g)]
        x = Inputs(*tensors, scale, cu_seqlens)
        s = Shapes(x)
        p = Prepared(s, x, for_gradients=False)
        out = x.q.new_empty(*q.shape[:3], s.values)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        attend[lambda meta: (s.blocks * meta["SPLIT"], s.heads)](
            p.query, p.key, x.v, p.turns, p.logits, p.before, p.after, out, lse, s.table, s.cu,
            s.heads, s.group, s.values, C=s.C, K=s.K, V=s.V,
        )  # fmt: skip
        ctx.save_for_backward(*tensors, out, lse, cu_seqlens)
        ctx.scale = scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        *tensors, out, lse, cu_seqlens = ctx.saved_tensors
        x, grad = Inputs(*tensors, ctx.scale, cu_seqlens), grad.contiguous()
        s = Shapes(x)
        firsts = first_chunks(x.q, cu_seqlens, s.C)
        p = Prepared(s, x, for_gradients=True)
        delta = torch.empty_like(lse)
        outer_delta[(s.blocks, s.heads)](out, grad, delta, s.table, s.cu, s.heads, s.values, C=s.C, V=s.V)
        arriving = Arriving(grad, lse, delta)
        d = SpanGradients(s, p, x.v, arriving, firsts)
        dq, dk, dw, dbeta, dg = through_blocks(s, p, d, x, arriving, firsts)
        return dq, dk, d.v, dw, dbeta, dg, None, None


def path_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.path_attention` on a GPU; gradients of first order."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _PathAttention.apply(q, k, v, w, beta, g, scale, cu_seqlens)
