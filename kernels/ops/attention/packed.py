"""Attention through a library's kernel for packed sequences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.dispatch import Operation


def register_packed(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of attention."""

    def run(q, k, v, *, causal=True, window=None, scale=None, cu_seqlens=None) -> Tensor:
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        cu_q = cu_k = cu_seqlens
        if cu_seqlens is None:
            cu_q, cu_k = (_equal_lengths(batch, length, q.device) for length in (queries, keys))
        out = plugin.packed_attention(
            *(x.flatten(0, 1) for x in (q, k, v)),
            cu_q,
            cu_k,
            queries,
            keys,
            causal=causal,
            window=window,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
        )
        return out.unflatten(0, (batch, queries))

    def refuses(q, k, v, *, window=None, **_) -> str | None:
        return plugin.refuses(q, k, v, window)

    operation.register(name, run, refuses=refuses, suits=suits)


def _equal_lengths(batch: int, length: int, device: torch.device) -> Tensor:
    return torch.arange(batch + 1, device=device, dtype=torch.int32) * length
