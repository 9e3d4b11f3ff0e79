"""Host calls whose kernels are only compiled: ours on tensors of a CPU, with plausible numbers where the host reads
what a kernel would have written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from experiments.bench.cases import Call
from kernels.dispatch import never
from kernels.ops import attention as attention_on_host
from kernels.ops.nsa_attention import triton_ops as nsa_on_host


def on_triton(call: Call) -> Any:
    """Run a call's Triton form on tensors of a CPU, which it would refuse otherwise, and return its outputs."""
    with call.registry.override("triton", refuses=never):
        return call.run("triton")


@contextlib.contextmanager
def equal_segments() -> Iterator[None]:
    """Return a context manager inside which PyTorch's attention over segments takes them to be of equal length.

    Their boundaries cu_seqlens [N + 1] are computed by a kernel that does not run here: the N segments are cut evenly
    from the tokens instead, so that operators see the sizes of a balanced assignment.
    """
    eager = attention_on_host.segment_attention_eager

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
        count = len(cu_seqlens) - 1
        return eager(q, k, v, torch.arange(count + 1) * len(q) // count, **options)

    with mock.patch.object(attention_on_host, "segment_attention_eager", attend):
        yield


@contextlib.contextmanager
def even_selection() -> Iterator[None]:
    """Return a context manager inside which NSA's queries choose blocks of keys as `spread_blocks` does.

    Its backward pass sorts the choice, which the kernel that makes it, not run here, leaves unwritten.
    """
    block_topk = nsa_on_host.block_topk

    def choose(
        q: Tensor, k: Tensor, lse: Tensor, branch: Any, first_key: Tensor, sizes: Any, *rest: Any
    ) -> Tensor:
        chosen = block_topk(q, k, lse, branch, first_key, sizes, *rest)
        # By NumPy, in place: PyTorch's operators are counted.
        chosen.numpy()[:] = spread_blocks(chosen.shape[1], sizes.select_size, chosen.shape[-1])[:, None]
        return chosen

    with mock.patch.object(nsa_on_host, "block_topk", choose):
        yield


def spread_blocks(queries: int, size: int, number: int) -> np.ndarray:
    """Return the first keys of the blocks that each query chooses, int32 [queries, number].

    Of the blocks of `size` keys up to a query's own, `number` evenly spaced ones, the first and its own among them; all
    of them, and −1 for the rest, where there are no more than `number`.
    """
    own, place = np.arange(queries)[:, None] // size, np.arange(number)
    apart = place * own // max(number - 1, 1)
    few = np.where(place <= own, place, -1)
    block = np.where(own < number, few, apart)
    return np.where(block < 0, -1, block * size).astype(np.int32)
