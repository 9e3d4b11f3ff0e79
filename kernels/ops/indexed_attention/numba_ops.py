"""Numba's form: every query reads its own keys alone, compiled for the processor at hand."""

from __future__ import annotations

import functools

from torch import Tensor

from kernels.numba_common import refusal
from kernels.ops.indexed_attention.operators import fused

indexed_attention_numba = functools.partial(fused, form="numba")
"""Compute `kernels.indexed_attention` for what `refuses_numba` does not refuse; shapes as there."""


def refuses_numba(
    q: Tensor, k: Tensor, v: Tensor, *indexer: Tensor, cu_seqlens: Tensor | None = None, **_options
) -> str | None:
    """Return why Numba cannot serve a call of `indexed_attention`, None if it can."""
    if q.shape[1] != k.shape[1]:
        return f"needs as many queries as keys, got {q.shape[1]} and {k.shape[1]}"
    if cu_seqlens is not None:
        return "takes no packed sequences"
    return refusal(q, k, v, *indexer)
