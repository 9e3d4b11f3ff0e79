"""Forward and backward passes that benchmarks time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Form = Callable[[], Any]
"""A call without arguments that returns tensors, nested in lists and tuples and partly None."""


@torch.no_grad()
def forward(form: Form, leaves: list[Tensor]) -> None:
    """Run one forward pass without a graph; the leaves are not needed."""
    form()


def forward_backward(form: Form, leaves: list[Tensor]) -> None:
    """Run one forward pass and differentiate its outputs with respect to the leaves, under gradients of ones."""
    outputs = [x for x in _tensors(form()) if x.requires_grad]
    torch.autograd.grad(outputs, leaves, [torch.ones_like(x) for x in outputs], allow_unused=True)


MODES = {"forward": forward, "forward+backward": forward_backward}
"""The passes by the name that tables give them."""


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, list | tuple):
        for x in outputs:
            yield from _tensors(x)
