"""The backward of a call: the scales' launches, then back through the prepared blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.path_attention.triton_backward_preprocess import backward_preprocess
from kernels.ops.path_attention.triton_layout import Inputs, Prepared, Shapes
from kernels.ops.path_attention.triton_path_products import products, products_back
from kernels.ops.path_attention.triton_prepare_backward import compact_back, gate_back, group_back, inner_back
from kernels.ops.path_attention.triton_scales import Arriving, Far, Near


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
