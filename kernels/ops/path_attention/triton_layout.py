"""The arguments, sizes and buffers of a call, and the prepared blocks that its forward and backward read."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.ops.path_attention.triton_prepare import compact, inner, turn
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import padded


class Inputs(NamedTuple):
    """The arguments of `kernels.path_attention`, tensors contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    beta: Tensor | None
    g: Tensor | None
    scale: float
    cu_seqlens: Tensor | None


class Shapes:
    """Sizes of a call that all kernels share, and its layout: M blocks of C tokens, widths padded to K and V."""

    def __init__(self, x: Inputs) -> None:
        q, k, v, cu_seqlens = x.q, x.k, x.v, x.cu_seqlens
        self.heads, self.kv_heads, self.width, self.values = q.shape[2], k.shape[2], k.shape[3], v.shape[3]
        self.group = self.heads // self.kv_heads
        self.K, self.V = (padded(x) for x in (self.width, self.values))
        self.C = 128 if self.K > 64 and q.dtype != torch.float32 else 64
        self.cu, self.table = boundaries(q, cu_seqlens), chunk_table(q, cu_seqlens, self.C)
        self.blocks = len(self.table)
        self.longest = triton.cdiv(q.shape[1], self.C)  # blocks that one sequence may have
        self.dtype = q.dtype

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

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32, slots: int = 0) -> Tensor:
        """Uninitialised numbers [M, …] or [slots, M, …], fp32 by default."""
        leading = (slots, self.blocks) if slots else (self.blocks,)
        return torch.empty(*leading, *shape, dtype=dtype, device=self.table.device)


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
