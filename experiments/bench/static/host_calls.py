"""Running a call whose kernels are compiled only: ours on tensors of a CPU, boundaries that may be garbage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from experiments.bench.cases.call import Call
from kernels import segments
from kernels.dispatch import never


def on_triton(call: Call) -> Any:
    """The outputs of a call's Triton form; tensors of a CPU, which it would refuse, are taken for a GPU's."""
    with call.registry.override("triton", refuses=never):
        return call.run("triton")


@contextlib.contextmanager
def equal_segments() -> Iterator[None]:
    """While inside, attention over segments by PyTorch's operations takes them for segments of equal length."""
    eager = segments.segment_attention_eager

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
        count = len(cu_seqlens) - 1
        return eager(q, k, v, torch.arange(count + 1) * len(q) // count, **options)

    with mock.patch.object(segments, "segment_attention_eager", attend):
        yield
