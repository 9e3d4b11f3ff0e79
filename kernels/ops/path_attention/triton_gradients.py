"""The backward of a call: launches over spans of keys, then back through the prepared blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.ops.path_attention.triton_backward import carry, carry_gates, key_side, query_side, turn_side
from kernels.ops.path_attention.triton_layout import Inputs, Prepared, Shapes
from kernels.ops.path_attention.triton_prepare_backward import compact_back, gate_back, group_back, inner_back

SPAN = 512
"""Tokens whose copies are held at a time: a span of T tokens would need T/SPAN times as much."""


class Arriving(NamedTuple):
    """The output's gradient [B, T, H, V] and, fp32 [B, T, H], the log-sum-exps and delta = do·o."""

    grad: Tensor
    lse: Tensor
    delta: Tensor


class _Copies(NamedTuple):
    """Buffers of one span: its keys at every later block, the gradients of those copies, and sums of gates."""

    keys: Tensor
    gradients: Tensor | None
    sums: Tensor | None


class SpanGradients:
    """Gradients of the prepared blocks, summed over spans of keys.

    query, turns, across  in two slots, `slot` or `slot_kv` apart: a span reads one and writes the other
    key, v                of keys at the end of their block, and of values
    across, received      of every token the sums of dS over keys (of earlier blocks) and over queries
    """

    def __init__(self, s: Shapes, p: Prepared, v: Tensor, arriving: Arriving, firsts: Tensor) -> None:
        self.blocks = max(1, SPAN // s.C)
        self.slot, self.slot_kv = s.blocks * s.heads, s.blocks * s.kv_heads
        self.query, self.across = s.empty(s.heads, s.C, s.K, slots=2), s.empty(s.heads, s.C, slots=2)
        self.key, self.received = s.empty(s.kv_heads, s.C, s.K), s.empty(s.heads, s.C)
        self.turns = None if p.turns is None else s.empty(s.kv_heads, s.K, s.K, slots=2)
        self.v = torch.empty_like(v)
        keys = s.empty(s.kv_heads, self.blocks * s.C, s.K, dtype=s.dtype)
        gradients = None if p.turns is None else torch.empty_like(keys)
        sums = None if p.before is None else s.empty(s.heads, self.blocks * s.C)
        copies = _Copies(keys, gradients, sums)
        for span in range(triton.cdiv(s.longest, self.blocks)):
            self._carry(span, s, p, firsts, copies)
            self._add(span, s, p, v, arriving, firsts, copies)

    def _tiles(self, s: Shapes) -> dict[str, int]:
        return {"C": s.C, "K": s.K, "BLOCKS": self.blocks}

    def _own_blocks(self, firsts: Tensor) -> int:
        """Blocks of a span, over all sequences."""
        return (len(firsts) - 1) * self.blocks

    def _carry(self, span: int, s: Shapes, p: Prepared, firsts: Tensor, copies: _Copies) -> None:
        """Fill the copies with the span's keys and sums of gates."""
        parts, own = s.C // 64, self._own_blocks(firsts)
        # Turns of 256 channels fill half of the shared memory: there is no room to fetch one before its time.
        room = {"num_warps": 8, "num_stages": 1} if s.K > 128 else {}
        carry[(own * parts, s.kv_heads)](
            p.key, p.turns, copies.keys, firsts, span, s.kv_heads, **self._tiles(s), SPLIT=parts, **room
        )
        if copies.sums is not None:
            carry_gates[(own, s.heads)](
                p.before, p.after, copies.sums, firsts, span, s.heads, C=s.C, BLOCKS=self.blocks
            )

    def _add(
        self,
        span: int,
        s: Shapes,
        p: Prepared,
        v: Tensor,
        arriving: Arriving,
        firsts: Tensor,
        copies: _Copies,
    ) -> None:
        """Add the span's part to the gradients."""
        tiles, groups = self._tiles(s), (s.heads, s.group, s.values)
        query_side[lambda meta: (s.blocks * meta["SPLIT"], s.heads)](
            p.query, v, *arriving, p.before, copies.sums, copies.keys, self.query, self.across, s.table, s.cu, span,
            self.slot, *groups, **tiles, V=s.V,
        )  # fmt: skip
        key_side[lambda meta: (self._own_blocks(firsts) * meta["SPLIT"], s.kv_heads)](
            p.query, v, *arriving, p.before, copies.sums, copies.keys, p.turns, p.logits, copies.gradients, self.key,
            self.v, self.received, firsts, s.cu, span, *groups, **tiles, V=s.V, G=triton.next_power_of_2(s.group),
        )  # fmt: skip
        if p.turns is not None:
            width = min(s.K, 64)
            turn_side[(s.blocks, s.kv_heads, (s.K // width) ** 2)](
                copies.keys, copies.gradients, self.turns, s.table, span, self.slot_kv, s.kv_heads, **tiles, BK=width
            )  # fmt: skip


def through_blocks(
    s: Shapes, p: Prepared, d: SpanGradients, x: Inputs, arriving: Arriving, firsts: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, w, beta and g from those of the prepared blocks."""
    options, (q, k, v, w, beta, g, scale, _) = s.preparing, x
    turning, square = w is not None, (s.heads, s.C, s.C)
    dlogits, dpassed = s.empty(*square), s.empty(*square) if turning else None
    net = None if g is None else s.empty(s.heads, s.C)
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    dw, dbeta, dg = (None if x is None else torch.empty_like(x) for x in (w, beta, g))
    inner_back[(s.blocks, s.heads)](
        k, v, w, *arriving, p.logits, p.skipped, p.u, d.query, d.across, d.received, dlogits, dpassed, dq, net,
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
