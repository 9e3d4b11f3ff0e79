"""Running a call whose kernels are compiled only: ours on tensors of a CPU, and plausible numbers where the host reads
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

from experiments.bench.cases.call import Call
from kernels.dispatch import never
from kernels.ops.attention import torch_ops as attention_on_host
from kernels.ops.nsa_attention import triton_ops as nsa_on_host


def on_triton(call: Call) -> Any:
    """The outputs of a call's Triton form; tensors of a CPU, which it would refuse, are taken for a GPU's."""
    with call.registry.override("triton", refuses=never):
        return call.run("triton")


@contextlib.contextmanager
def equal_segments() -> Iterator[None]:
    """While inside, attention over segments by PyTorch's operations takes them for segments of equal length."""
    eager = attention_on_host.segment_attention_eager

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
        count = len(cu_seqlens) - 1
        return eager(q, k, v, torch.arange(count + 1) * len(q) // count, **options)

    with mock.patch.object(attention_on_host, "segment_attention_eager", attend):
        yield


@contextlib.contextmanager
def even_selection() -> Iterator[None]:
    """While inside, NSA's queries choose blocks of keys as `spread_blocks` does: its backward pass sorts the choice."""
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
    """First keys of blocks [queries, number], int32: of those up to a query's own, evenly spaced, the first and its own
    among them; all of them and −1 where there are no more than `number`.
    """
    own, place = np.arange(queries)[:, None] // size, np.arange(number)
    apart = place * own // max(number - 1, 1)
    few = np.where(place <= own, place, -1)
    block = np.where(own < number, few, apart)
    return np.where(block < 0, -1, block * size).astype(np.int32)
