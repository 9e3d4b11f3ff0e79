"""Attention by a library's kernel for packed sequences, as a backend of the operation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels.dispatch import Operation
from kernels.packing.boundaries import boundaries


def register_plugin(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of attention; a batch is packed sequences of one length."""

    def run(q, k, v, *, causal=True, window=None, scale=None, cu_seqlens=None) -> Tensor:
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        cu_q, cu_k = (boundaries(x, cu_seqlens) for x in (q, k))
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
