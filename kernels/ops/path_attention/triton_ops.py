"""PaTH attention on a GPU, in memory linear in T.

forward   saved: the inputs, o and the log-sum-exps. Blocks are prepared (triton_prepare.py), then every query walks
          back over the blocks of keys (triton_forward.py)
backward  blocks are prepared again; span after span of keys is carried through all later blocks and back
          (triton_backward.py); then gradients go back through the preparation (triton_prepare_backward.py)
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.ops.path_attention.triton_backward import (
    carry,
    carry_gates,
    key_side,
    outer_delta,
    query_side,
    turn_side,
)
from kernels.ops.path_attention.triton_forward import attend
from kernels.ops.path_attention.triton_layout import Prepared, Shapes
from kernels.ops.path_attention.triton_prepare_backward import compact_back, gate_back, group_back, inner_back
from kernels.packing.chunks import first_chunks
from kernels.triton_common.gradients import first_order

SPAN = 512
"""Tokens whose copies are kept at a time: a span of T tokens would need T/SPAN times as much."""


class _Swept:
    """Gradients of what the sweep over blocks reads: of queries and turns in two slots (`slot_*` apart), of keys, and
    of every token the sums of dS over keys (across, far ones only) and over queries (received)."""

    def __init__(self, s: Shapes, p: Prepared, v, grad, lse, delta, firsts: Tensor) -> None:
        self.blocks = max(1, SPAN // s.C)
        self.slot, self.slot_kv = s.blocks * s.heads, s.blocks * s.kv_heads
        self.query, self.across = s.empty(s.heads, s.C, s.K, slots=2), s.empty(s.heads, s.C, slots=2)
        self.key, self.received = s.empty(s.kv_heads, s.C, s.K), s.empty(s.heads, s.C)
        self.turns = None if p.turns is None else s.empty(s.kv_heads, s.K, s.K, slots=2)
        self.v = torch.empty_like(v)
        copies = s.empty(s.kv_heads, self.blocks * s.C, s.K, dtype=s.dtype)
        dcopies = None if p.turns is None else torch.empty_like(copies)
        sums = None if p.before is None else s.empty(s.heads, self.blocks * s.C)
        for span in range(triton.cdiv(s.longest, self.blocks)):
            self._span(span, s, p, v, grad, lse, delta, firsts, copies, dcopies, sums)

    def _span(self, span, s, p, v, grad, lse, delta, firsts, copies, dcopies, sums) -> None:
        tiles = {"C": s.C, "K": s.K, "BLOCKS": self.blocks}
        groups = (s.heads, s.group, s.values)
        own = (len(firsts) - 1) * self.blocks  # blocks of the span, over all sequences
        parts = s.C // 64
        # Turns of 256 channels fill half of the shared memory: there is no room to fetch one before its time.
        room = {"num_warps": 8, "num_stages": 1} if s.K > 128 else {}
        carry[(own * parts, s.kv_heads)](
            p.key, p.turns, copies, firsts, span, s.kv_heads, **tiles, SPLIT=parts, **room
        )
        if sums is not None:
            carry_gates[(own, s.heads)](
                p.before, p.after, sums, firsts, span, s.heads, C=s.C, BLOCKS=self.blocks
            )
        query_side[lambda meta: (s.blocks * meta["SPLIT"], s.heads)](
            p.query, v, grad, lse, delta, p.before, sums, copies, self.query, self.across, s.table, s.cu, span,
            self.slot, *groups, **tiles, V=s.V,
        )  # fmt: skip
        key_side[lambda meta: (own * meta["SPLIT"], s.kv_heads)](
            p.query, v, grad, lse, delta, p.before, sums, copies, p.turns, p.logits, dcopies, self.key, self.v,
            self.received, firsts, s.cu, span, *groups, **tiles, V=s.V, G=triton.next_power_of_2(s.group),
        )  # fmt: skip
        if p.turns is not None:
            width = min(s.K, 64)
            turn_side[(s.blocks, s.kv_heads, (s.K // width) ** 2)](
                copies, dcopies, self.turns, s.table, span, self.slot_kv, s.kv_heads, **tiles, BK=width
            )


def _through_blocks(s: Shapes, p: Prepared, d: _Swept, q, k, v, w, beta, g, grad, lse, delta, firsts, scale):
    """Gradients of q, k, w, beta and g from those of the sweep."""
    options = s.preparing
    turning, square = w is not None, (s.heads, s.C, s.C)
    dlogits, dpassed = s.empty(*square), s.empty(*square) if turning else None
    net = None if g is None else s.empty(s.heads, s.C)
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    dw, dbeta, dg = (None if x is None else torch.empty_like(x) for x in (w, beta, g))
    inner_back[(s.blocks, s.heads)](
        k, v, w, grad, lse, delta, p.logits, p.skipped, p.u, d.query, d.across, d.received, dlogits, dpassed, dq, net,
        s.table, s.cu, scale, d.slot, s.heads, s.group, s.width, s.values,
        **options, V=s.V, BV=min(s.V, 64), BLOCKS=d.blocks,
    )  # fmt: skip
    if g is not None:
        gate_back[(len(firsts) - 1, s.heads)](net, dg, firsts, s.cu, s.heads, C=s.C)
    wide = (s.kv_heads, s.C, s.K)
    dk_part = s.empty(*wide)
    du, dw_part = (s.empty(*wide) if turning else None for _ in range(2))
    group_back[(s.blocks, s.kv_heads, s.K // options["BK"])](
        q, w, p.u, p.skipped, p.passed, dlogits, dpassed, d.query, d.key, d.turns, du, dk_part, dw_part,
        s.table, s.cu, scale, d.slot, d.slot_kv, s.heads, s.group, s.width, **options, BLOCKS=d.blocks,
    )  # fmt: skip
    compact_back[(s.blocks, s.kv_heads)](
        k, w, beta, p.inverse, p.skipped, p.u, p.passed, dlogits, d.key, du, dk_part, dw_part, dk, dw, dbeta,
        s.table, s.cu, s.heads, s.group, s.width, **options,
    )  # fmt: skip
    return dq, dk, dw, dbeta, dg


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, w, beta, g, scale, cu_seqlens):
        q, k, v, w, beta, g = (None if x is None else x.contiguous() for x in (q, k, v, w, beta, g))
        s = Shapes(q, k, v, cu_seqlens)
        p = Prepared(s, q, k, w, beta, g, scale, for_gradients=False)
        out = q.new_empty(*q.shape[:3], s.values)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        attend[lambda meta: (s.blocks * meta["SPLIT"], s.heads)](
            p.query, p.key, v, p.turns, p.logits, p.before, p.after, out, lse, s.table, s.cu,
            s.heads, s.group, s.values, C=s.C, K=s.K, V=s.V,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, w, beta, g, out, lse, cu_seqlens)
        ctx.scale = scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, grad):
        q, k, v, w, beta, g, out, lse, cu_seqlens = ctx.saved_tensors
        grad = grad.contiguous()
        s = Shapes(q, k, v, cu_seqlens)
        firsts = first_chunks(q, cu_seqlens, s.C)
        p = Prepared(s, q, k, w, beta, g, ctx.scale, for_gradients=True)
        delta = torch.empty_like(lse)
        outer_delta[(s.blocks, s.heads)](out, grad, delta, s.table, s.cu, s.heads, s.values, C=s.C, V=s.V)
        d = _Swept(s, p, v, grad, lse, delta, firsts)
        dq, dk, dw, dbeta, dg = _through_blocks(
            s, p, d, q, k, v, w, beta, g, grad, lse, delta, firsts, ctx.scale
        )
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
    """`kernels.path_attention` on a GPU; gradients of first order."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _PathAttention.apply(q, k, v, w, beta, g, scale, cu_seqlens)
