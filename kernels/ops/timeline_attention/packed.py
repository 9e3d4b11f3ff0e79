"""Timeline attention through a library's kernel for packed sequences: a timeline is one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from kernels.dispatch import Operation
from kernels.ops.timeline_attention.torch_ops import timeline_attention_sorted


def register_packed(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of timeline attention."""

    def run(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **options) -> Tensor:
        # Finding the longest timeline would wait for the GPU; T bounds it and costs only idle blocks.
        attend = partial(_attend, plugin, q.shape[1])
        return timeline_attention_sorted(q, k, v, assignment, attend=attend, **options)

    def refuses(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **_) -> str | None:
        return plugin.refuses(q, k, v)

    operation.register(name, run, refuses=refuses, suits=suits)


def _attend(
    plugin, longest: int, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float
) -> Tensor:
    return plugin.packed_attention(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True, window=None, scale=scale
    )
