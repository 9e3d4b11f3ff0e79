"""Timeline attention by a library's kernel for packed sequences, of which every timeline is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from kernels.dispatch import Operation
from kernels.ops.timeline_attention.torch_ops import timeline_attention_sorted


def register_plugin(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of timeline attention."""

    def run(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **options) -> Tensor:
        attend = partial(attend_by_plugin, plugin, q.shape[1])
        return timeline_attention_sorted(q, k, v, assignment, attend=attend, **options)

    def refuses(q: Tensor, k: Tensor, v: Tensor, assignment: Tensor, **_) -> str | None:
        return plugin.refuses(q, k, v)

    operation.register(name, run, refuses=refuses, suits=suits)


def attend_by_plugin(
    plugin, longest: int, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, scale: float
) -> Tensor:
    """Attention [M, 1, V] within timelines of at most `longest` tokens; q, k [M, 1, K], v [M, 1, V].

    Finding the longest timeline would wait for the GPU; T bounds it and costs only idle blocks.
    """
    return plugin.packed_attention(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True, window=None, scale=scale
    )
