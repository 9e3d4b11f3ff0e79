"""PaTH attention on a GPU, in memory linear in T.

forward   saved: the inputs, o, the log-sum-exps, the layout. Blocks are prepared (triton_prepare.py), then every query
          goes back over the blocks of keys (triton_forward.py)
backward  blocks are prepared again; keys are carried through all later blocks and back at two scales
          (triton_backward.py); then gradients go back through the preparation (triton_prepare_backward.py); both are
          launched from triton_gradients.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.path_attention.triton_forward import attend
from kernels.ops.path_attention.triton_gradients import through_blocks, through_scales
from kernels.ops.path_attention.triton_layout import Inputs, Prepared, Shapes, Tables


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, w, beta, g, scale, cu_seqlens):
        tensors = [None if x is None else x.contiguous() for x in (q, k, v, w, beta, g)]
        x = Inputs(*tensors, scale, cu_seqlens)
        s = Shapes(x, for_gradients=any(ctx.needs_input_grad))
        p = Prepared(s, x, for_gradients=False)
        out = x.q.new_empty(*q.shape[:3], s.values)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        attend[lambda meta: (s.blocks * meta["SPLIT"], s.heads)](
            p.query, p.key, x.v, p.turns, p.logits, p.before, p.after, out, lse, s.table, s.cu,
            s.heads, s.group, s.values, C=s.C, K=s.K, V=s.V,
        )  # fmt: skip
        ctx.save_for_backward(*tensors, out, lse, cu_seqlens, *s.tables)
        ctx.scale = scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        *tensors, out, lse, cu_seqlens, cu, table, firsts, stretches = ctx.saved_tensors
        x, grad = Inputs(*tensors, ctx.scale, cu_seqlens), grad.contiguous()
        s = Shapes(x, Tables(cu, table, firsts, stretches))
        p = Prepared(s, x, for_gradients=True)
        near, arriving = through_scales(s, p, x, out, grad, lse)
        dq, dk, dw, dbeta, dg = through_blocks(s, p, near, x, arriving)
        return dq, dk, near.dv, dw, dbeta, dg, None, None


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
    """Compute `kernels.path_attention` on a GPU; gradients of first order.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _PathAttention.apply(q, k, v, w, beta, g, scale, cu_seqlens)
