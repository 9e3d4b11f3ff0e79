"""The two scales of the backward, near and far: what each keeps and launches (triton_backward.py explains)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.ops.path_attention.triton_backward import far_query_side, near_query_side
from kernels.ops.path_attention.triton_carry import carry, carry_gates
from kernels.ops.path_attention.triton_key_side import far_key_side, near_key_side
from kernels.ops.path_attention.triton_layout import Inputs, Prepared, Shapes
from kernels.ops.path_attention.triton_turns import turn_side

SPAN = 8192
"""Tokens whose copies at later stretches are held at a time: a span of T tokens would need T/SPAN times as much."""


class Arriving(NamedTuple):
    """The output's gradient [B, T, H, V] and, in fp32, log-sum-exps [B, T, H] and delta = do·o [H, B·T]."""

    grad: Tensor
    lse: Tensor
    delta: Tensor


class Scale:
    """Units of C tokens, UNITS of which make a span: the blocks of a stretch, or the stretches of a span.

    query, key, turns        of every unit, as in `Prepared`; of stretches, in the order of their first tokens
    before, after            Σ of gates from the start of a unit, and to its end; None without gates
    level, sums, copies      of `arrive`, `carry_gates` and `carry`
    dquery, across, dturns   of `query_side` and `turn_side`; far: in two slots, `slot` or `slot_kv` apart
    dkey, dv, received       of `key_side`
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
        """Uninitialised numbers of all units, fp32 by default."""
        return torch.empty(self.places, *shape, dtype=dtype, device=self.table.device)

    def _grid(self, meta: dict[str, int], heads: int) -> tuple[int, int]:
        return len(self.table) * meta["SPLIT"], heads

    def carry(self, span: int, far_key: Tensor | None = None) -> None:
        """Fill `copies`; near: and the far scale's keys."""
        s = self.shapes
        parts = max(1, self.tiles["C"] // 64)
        carry[(len(self.table) * parts, s.kv_heads)](
            self.key, self.turns, self.copies, far_key, self.table, s.cu, span, s.kv_heads,
            **self.tiles, SPLIT=parts, **s.room,
        )  # fmt: skip

    def back(self, span: int, x: Inputs, p: Prepared, arriving: Arriving, far: Far | None = None) -> None:
        """Launch `query_side`, `key_side` and `turn_side`; near: on top of what the far scale gave."""
        s, spanned = self.shapes, far.tiles["UNITS"] if far else 1
        groups = (s.tokens, s.heads, s.group, s.values)
        query_side, key_side = (
            (near_query_side, near_key_side) if self.near else (far_query_side, far_key_side)
        )
        dcopies = None if x.w is None else torch.empty_like(self.copies)
        query_side[lambda meta: self._grid(meta, s.heads)](
            self.query, x.v, arriving.grad, arriving.delta, self.level, self.sums, self.copies, self.prefix,
            far and far.dquery, far and far.across, self.dquery, self.across, self.table, s.cu, span,
            (far or self).slot, *groups,
            **self.tiles, V=s.V, SPANNED=spanned,
        )  # fmt: skip
        key_side[lambda meta: self._grid(meta, s.kv_heads)](
            self.query, x.v, *arriving, self.level, self.sums, self.copies, self.turns, p.logits,
            far and far.dkey, far and far.dv, far and far.received,
            dcopies, self.dkey, self.dv, self.received, self.table, s.cu, span, *groups,
            **self.tiles, V=s.V, G=triton.next_power_of_2(s.group),
        )  # fmt: skip
        if self.turns is not None:
            width = min(s.K, 64)
            turn_side[(len(self.table), s.kv_heads, (s.K // width) ** 2)](
                self.copies, dcopies, self.prefix, self.dprefix, self.dturns, self.table, s.cu, span,
                self.slot_kv, s.kv_heads, **self.tiles, BK=width,
            )  # fmt: skip


class Near(Scale):
    """Blocks, those of a stretch a span; `prefix`, `dprefix` of `products` and `products_back`, far scale or None."""

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
    """Stretches."""

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
        """Fill `sums`."""
        s = self.shapes
        if self.sums is not None:
            options = {name: self.tiles[name] for name in ("C", "UNITS")}
            carry_gates[(len(self.table), s.heads)](
                self.before, self.after, self.sums, self.table, s.cu, span, s.heads, **options
            )
