"""The arguments, sizes and buffers of a call, and the prepared blocks that its forward and backward read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.ops.path_attention.triton_prepare import compact, inner, turn
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table, first_chunks
from kernels.triton_common.device import padded

STRETCH = 512
"""Tokens of a stretch: in the backward a key has copies at the blocks of its own stretch, and at later stretches."""


class Inputs(NamedTuple):
    """The arguments of `kernels.path_attention`, tensors contiguous.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None;
    scale, a number; cu_seqlens [N+1] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    beta: Tensor | None
    g: Tensor | None
    scale: float
    cu_seqlens: Tensor | None


class Tables(NamedTuple):
    """The layout of N sequences in chunks, integers on the device of q.

    cu         [N+1], bounds of sequences
    table      [M, 2], the sequence (−1: none) and the number in it of every block of C tokens
    firsts     [N+1], the first block of every sequence, for gradients; else None
    stretches  like table, of stretches; None where no sequence can have two, and without gradients
    """

    cu: Tensor
    table: Tensor
    firsts: Tensor | None
    stretches: Tensor | None


class Shapes:
    """Sizes of a call that all kernels share, and its layout: M blocks of C tokens, widths padded to K and V."""

    def __init__(self, x: Inputs, tables: Tables | None = None, *, for_gradients: bool = True) -> None:
        q, k, v = x.q, x.k, x.v
        self.heads, self.kv_heads, self.width, self.values = q.shape[2], k.shape[2], k.shape[3], v.shape[3]
        self.group = self.heads // self.kv_heads
        self.K, self.V = (padded(x) for x in (self.width, self.values))
        self.C = 128 if self.K > 64 and q.dtype != torch.float32 else 64
        self.stretch = max(1, STRETCH // self.C) * self.C
        self.tables = tables or self._tables(q, x.cu_seqlens, for_gradients)
        self.cu, self.table, self.firsts, self.stretches = self.tables
        self.blocks, self.tokens = len(self.table), q.shape[0] * q.shape[1]
        self.dtype = q.dtype

    def _tables(self, q: Tensor, cu_seqlens: Tensor | None, for_gradients: bool) -> Tables:
        firsts = first_chunks(q, cu_seqlens, self.C) if for_gradients else None
        far = for_gradients and q.shape[1] > self.stretch
        stretches = chunk_table(q, cu_seqlens, self.stretch) if far else None
        return Tables(boundaries(q, cu_seqlens), chunk_table(q, cu_seqlens, self.C), firsts, stretches)

    @property
    def preparing(self) -> dict:
        """Options of the kernels of triton_prepare.py."""
        exact = self.dtype == torch.float32
        return {
            "C": self.C,
            "K": self.K,
            "BK": min(self.K, 64),
            "PRECISION": "ieee" if exact else "tf32",
            "num_warps": self.C // 16,
            "num_stages": 1,
        }

    @property
    def room(self) -> dict[str, int]:
        """Options of kernels that go through turns in a loop: 256 channels of one fill half of the shared memory."""
        return {"num_warps": 8, "num_stages": 1} if self.K > 128 else {}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised numbers [M, …], fp32 by default."""
        return torch.empty(self.blocks, *shape, dtype=dtype, device=self.table.device)


class Prepared:
    """The results of the kernels of triton_prepare.py, whose docstring explains the names."""

    def __init__(self, shapes: Shapes, x: Inputs, *, for_gradients: bool) -> None:
        s, options, w = shapes, shapes.preparing, x.w
        turning = w is not None
        square = (s.kv_heads, s.C, s.C)
        self.inverse = s.empty(*square) if turning else None
        self.skipped = s.empty(*square) if turning else None
        self.u = s.empty(s.kv_heads, s.C, s.K) if turning else None
        self.turns = s.empty(s.kv_heads, s.K, s.K, dtype=s.dtype) if turning else None
        self.key = s.empty(s.kv_heads, s.C, s.K, dtype=s.dtype)
        self.query = s.empty(s.heads, s.C, s.K, dtype=s.dtype)
        self.logits = s.empty(s.heads, s.C, s.C)
        self.passed = s.empty(s.heads, s.C, s.C) if turning and for_gradients else None
        self.before, self.after = (s.empty(s.heads, s.C) if x.g is not None else None for _ in range(2))
        solving = "ieee" if s.dtype == torch.float32 else "tf32x3"
        compact[(s.blocks, s.kv_heads)](
            x.k, w, x.beta, self.inverse, self.skipped, self.u, self.key, s.table, s.cu, s.kv_heads, s.width,
            **options, SOLVING=solving,
        )  # fmt: skip
        if turning:
            turn[(s.blocks, s.kv_heads, (s.K // options["BK"]) ** 2)](
                self.u, w, self.turns, s.table, s.cu, s.kv_heads, s.width, **options
            )
        inner[(s.blocks, s.heads)](
            x.q, x.k, w, x.g, self.skipped, self.u, self.query, self.logits, self.passed, self.before, self.after,
            s.table, s.cu, x.scale, s.heads, s.group, s.width, **options,
        )  # fmt: skip
