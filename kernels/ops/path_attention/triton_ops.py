"""PaTH attention on a GPU, in memory linear in T.

forward   saved: the inputs, o, the log-sum-exps, the layout. Blocks are prepared (`Prepared`), then every query goes
          back over the blocks of keys (`attend`)
backward  blocks are prepared again; keys are carried through all later blocks and back at two scales
          (`through_scales`); then gradients go back through the preparation (`through_blocks`)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.path_attention.triton_backward import (
    backward_preprocess,
    compact_back,
    far_key_value_gradients,
    far_query_gradients,
    gate_back,
    group_back,
    inner_back,
    near_key_value_gradients,
    near_query_gradients,
)
from kernels.ops.path_attention.triton_forward import (
    Inputs,
    Prepared,
    Shapes,
    Tables,
    attend,
    carry,
    carry_gates,
    products,
    products_back,
    turn_gradients,
)
from kernels.triton_common.operators import operator

# The two scales of the backward, near and far: what each keeps and launches (triton_backward.py explains).

SPAN = 8192
"""Tokens whose copies at later stretches are held at a time: a span of T tokens would need T/SPAN times as much."""


class Arriving(NamedTuple):
    """The output's gradient [B, T, H, V] and, in fp32, log-sum-exps [B, T, H] and delta = do·o [H, B·T]."""

    grad: Tensor
    lse: Tensor
    delta: Tensor


class Scale:
    """Units of C tokens, UNITS of which make a span: the blocks of a stretch, or the stretches of a span.

    Buffers of M units, H heads and Hkv KV heads, fp32 where nothing else is said:

    query, key, turns        [M, H, C, K], [M, Hkv, C, K], [M, Hkv, K, K] in q's dtype, as in `Prepared`; stretches are
                             in the order of their first tokens
    before, after            [M, H, C]: Σ of gates from the start of a unit, and to its end; None without gates
    level                    [H, B·T], of `backward_preprocess`
    sums, copies             [M, H, UNITS·C] of `carry_gates`, [M, Hkv, UNITS·C, K] in q's dtype of `carry`
    dquery, across, dturns   [M, H, C, K], [M, H, C] of `query_gradients`, [M, Hkv, K, K] of `turn_gradients`; far: in
                             two slots, `slot` or `slot_kv` matrices apart
    dkey, dv, received       of `key_value_gradients`: [M, Hkv, C, K]; near like v, far [M, Hkv, C, V]; [M, H, C]
    """

    near: bool

    def __init__(self, s: Shapes, x: Inputs, tokens: int, units: int, table: Tensor, places: int) -> None:
        self.shapes, self.table, self.places = s, table, places
        self.tiles = {"C": tokens, "K": s.K, "UNITS": units, "NEAR": self.near}
        self.slot, self.slot_kv = places * s.heads, places * s.kv_heads
        slots = 1 if self.near else 2
        self.level = torch.empty(s.heads, s.tokens, dtype=torch.float32, device=table.device)
        self.sums = None if x.g is None else self.empty(s.heads, units * tokens)
        self.copies = self.empty(s.kv_heads, units * tokens, s.K, dtype=s.dtype)
        self.dquery = self.empty(slots * s.heads, tokens, s.K)
        self.across = self.empty(slots * s.heads, tokens)
        self.dturns = None if x.w is None else self.empty(slots * s.kv_heads, s.K, s.K)
        self.dkey, self.received = self.empty(s.kv_heads, tokens, s.K), self.empty(s.heads, tokens)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised numbers [M, *shape] of all units, fp32 by default."""
        return torch.empty(self.places, *shape, dtype=dtype, device=self.table.device)

    def _grid(self, meta: dict[str, int], heads: int) -> tuple[int, int]:
        return len(self.table) * meta["SPLIT"], heads

    def carry(self, span: int, far_key: Tensor | None = None) -> None:
        """Fill `copies` [M, Hkv, UNITS·C, K] of a span; near: and the far scale's keys, far_key [M, Hkv, C, K]."""
        s = self.shapes
        parts = max(1, self.tiles["C"] // 64)
        carry[(len(self.table) * parts, s.kv_heads)](
            self.key, self.turns, self.copies, far_key, self.table, s.cu, span, s.kv_heads,
            **self.tiles, SPLIT=parts, **s.room,
        )  # fmt: skip

    def back(self, span: int, x: Inputs, p: Prepared, arriving: Arriving, far: Far | None = None) -> None:
        """Launch the kernels of query, key and value, and turn gradients; near: on top of what the far scale gave.

        They fill dquery, across, dkey, dv, received and dturns.
        """
        s, spanned = self.shapes, far.tiles["UNITS"] if far else 1
        groups = (s.tokens, s.heads, s.group, s.values)
        query_gradients = near_query_gradients if self.near else far_query_gradients
        key_value_gradients = near_key_value_gradients if self.near else far_key_value_gradients
        dcopies = None if x.w is None else torch.empty_like(self.copies)
        query_gradients[lambda meta: self._grid(meta, s.heads)](
            self.query, x.v, arriving.grad, arriving.delta, self.level, self.sums, self.copies, self.prefix,
            far and far.dquery, far and far.across, self.dquery, self.across, self.table, s.cu, span,
            (far or self).slot, *groups,
            **self.tiles, V=s.V, SPANNED=spanned,
        )  # fmt: skip
        key_value_gradients[lambda meta: self._grid(meta, s.kv_heads)](
            self.query, x.v, *arriving, self.level, self.sums, self.copies, self.turns, p.logits,
            far and far.dkey, far and far.dv, far and far.received,
            dcopies, self.dkey, self.dv, self.received, self.table, s.cu, span, *groups,
            **self.tiles, V=s.V, G=triton.next_power_of_2(s.group),
        )  # fmt: skip
        if self.turns is not None:
            width = min(s.K, 64)
            turn_gradients[(len(self.table), s.kv_heads, (s.K // width) ** 2)](
                self.copies, dcopies, self.prefix, self.dprefix, self.dturns, self.table, s.cu, span,
                self.slot_kv, s.kv_heads, **self.tiles, BK=width,
            )  # fmt: skip


class Near(Scale):
    """The near scale: units are the M blocks of `Prepared`, and a span is a stretch of at most 512 tokens.

    prefix, dprefix  [M, Hkv, K, K]: I − P_b of a block's path from the start of its stretch (`products`, in q's dtype)
                     and the gradient of P behind the block (`products_back`, in q's dtype); None where no sequence has
                     two stretches or there is no path
    dv               [B, T, Hkv, V], the values' gradient
    """

    near = True

    def __init__(self, s: Shapes, x: Inputs, p: Prepared) -> None:
        super().__init__(s, x, s.C, s.stretch // s.C, s.table, s.blocks)
        self.query, self.key, self.turns, self.before, self.after = p.query, p.key, p.turns, p.before, p.after
        self.dv = torch.empty_like(x.v)
        far = s.stretches is not None and x.w is not None
        self.prefix, self.dprefix = (
            self.empty(s.kv_heads, s.K, s.K, dtype=s.dtype) if far else None for _ in range(2)
        )


class Far(Scale):
    """The far scale: units are the M stretches of 512 tokens, and a span holds at most SPAN tokens of them.

    spans  how many spans the longest sequence has; `carry`, `carry_gates` and `back` take their numbers
    query  [M, H, C, K] at the start of a stretch; key [M, Hkv, C, K] at its end
    turns  [M, Hkv, K, K]: I − H_first·…·H_last of a whole stretch
    dv     [M, Hkv, C, V] of the values' gradient, what later stretches give
    """

    near = False
    prefix = dprefix = None

    def __init__(self, s: Shapes, x: Inputs) -> None:
        tokens = s.stretch
        most = triton.cdiv(x.q.shape[1], tokens)
        units = max(1, min(SPAN // tokens, triton.next_power_of_2(most)))  # few sizes to compile for
        super().__init__(s, x, tokens, units, s.stretches, triton.cdiv(s.tokens, tokens))
        self.spans = triton.cdiv(most, units)
        self.query = self.empty(s.heads, tokens, s.K, dtype=s.dtype)
        self.key = self.empty(s.kv_heads, tokens, s.K, dtype=s.dtype)
        self.turns = None if x.w is None else self.empty(s.kv_heads, s.K, s.K, dtype=s.dtype)
        self.before, self.after = (self.empty(s.heads, tokens) if x.g is not None else None for _ in range(2))
        self.dv = self.empty(s.kv_heads, tokens, s.V)

    def carry_gates(self, span: int) -> None:
        """Fill `sums` [M, H, UNITS·C] of a span: Σ of gates from a token to later stretches; without gates nothing."""
        s = self.shapes
        if self.sums is not None:
            options = {name: self.tiles[name] for name in ("C", "UNITS")}
            carry_gates[(len(self.table), s.heads)](
                self.before, self.after, self.sums, self.table, s.cu, span, s.heads, **options
            )


# The backward of a call: the scales' launches, then back through the prepared blocks.


def through_scales(
    s: Shapes, p: Prepared, x: Inputs, out: Tensor, grad: Tensor, lse: Tensor
) -> tuple[Near, Arriving]:
    """Gradients of the prepared blocks, in `Near` (dquery, across, dkey, dv, received, dturns), and what arrived.

    out, grad [B, T, H, V] and lse [B, T, H]: the output, its gradient and the log-sum-exps.
    """
    near, far = Near(s, x, p), None if s.stretches is None else Far(s, x)
    arriving = Arriving(grad, lse, torch.empty_like(near.level))
    tiles = {name: near.tiles[name] for name in ("C", "K", "UNITS")}
    wide = {**tiles, "BR": min(s.K, 64), **s.room}
    near.carry(0, far and far.key)
    stretched = far is not None and x.w is not None
    if stretched:
        grid = (len(far.table), s.kv_heads, s.K // wide["BR"])
        products[grid](near.turns, near.prefix, far.turns, far.table, s.firsts, s.cu, s.kv_heads, **wide)
    backward_preprocess[(s.blocks, s.heads)](
        out, grad, lse, p.query, near.prefix, p.before, p.after, arriving.delta, near.level, near.sums,
        far and far.query, far and far.level, far and far.before, far and far.after, s.table, s.cu,
        s.tokens, s.heads, s.group, s.values, **tiles, V=s.V, **s.room,
    )  # fmt: skip
    if far:
        for span in range(far.spans):
            far.carry(span)
            far.carry_gates(span)
            far.back(span, x, p, arriving)
        del far.copies
    if stretched:
        products_back[grid](
            near.turns, p.query, far.dquery, far.dturns, near.dprefix, far.table, s.firsts, s.cu, far.slot, far.slot_kv,
            s.heads, s.group, **wide, SPANNED=far.tiles["UNITS"],
        )  # fmt: skip
    near.back(0, x, p, arriving, far)
    return near, arriving


def through_blocks(
    s: Shapes, p: Prepared, d: Near, x: Inputs, arriving: Arriving
) -> tuple[Tensor | None, ...]:
    """Gradients of q [B, T, H, K], k, w [B, T, Hkv, K], beta [B, T, Hkv] and g [B, T, H]; None for what is None.

    d: the gradients of the prepared blocks.
    """
    options, (q, k, v, w, beta, g, scale, _) = s.preparing, x
    turning, square = w is not None, (s.heads, s.C, s.C)
    dlogits, dpassed = s.empty(*square), s.empty(*square) if turning else None
    net = None if g is None else s.empty(s.heads, s.C)
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    dw, dbeta, dg = (None if x is None else torch.empty_like(x) for x in (w, beta, g))
    inner_back[(s.blocks, s.heads)](
        k, v, w, *arriving, p.logits, p.skipped, p.u, d.dquery, d.across, d.received, dlogits, dpassed, dq, net,
        s.table, s.cu, scale, s.tokens, s.heads, s.group, s.width, s.values,
        **options, V=s.V, BV=min(s.V, 64),
    )  # fmt: skip
    if g is not None:
        gate_back[(len(s.firsts) - 1, s.heads)](net, dg, s.firsts, s.cu, s.heads, C=s.C)
    wide = (s.kv_heads, s.C, s.K)
    dk_part = s.empty(*wide)
    du, dw_part = (s.empty(*wide) if turning else None for _ in range(2))
    group_back[(s.blocks, s.kv_heads, s.K // options["BK"])](
        q, w, p.u, p.skipped, p.passed, dlogits, dpassed, d.dquery, d.dkey, d.dturns, du, dk_part, dw_part,
        s.table, s.cu, scale, s.heads, s.group, s.width, **options,
    )  # fmt: skip
    compact_back[(s.blocks, s.kv_heads)](
        k, w, beta, p.inverse, p.skipped, p.u, p.passed, dlogits, d.dkey, du, dk_part, dw_part, dk, dw, dbeta,
        s.table, s.cu, s.heads, s.group, s.width, **options,
    )  # fmt: skip
    return dq, dk, dw, dbeta, dg


@operator
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
    return _PathAttention(q, k, v, w, beta, g, scale, cu_seqlens)
