"""Bytes of main memory that operators read and write when each is a kernel of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.bench.passes import MODES, Form

NOT_COUNTED = ("empty", "ones_like")
"""Memory that is only taken, and the gradients of ones with which a backward pass begins."""


class OperatorBytes(TorchDispatchMode):
    """Counts in `total`, while it is entered, every operator's inputs and outputs, each once; views move nothing.

    `operators` is how many they were.

    What an operator moves inside (a softmax that reads its input twice, say) is not counted: it is a lower bound. Of an
    expanded tensor only what is stored counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not any(name in func.__name__ for name in NOT_COUNTED):
            read = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            written = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            self.operators += bool(
                read or written
            )  # what has no tensors runs on the host: types of results, say
            self.total += sum(map(_stored_bytes, [*read.values(), *written]))
        return out


def bytes_of(form: Form, leaves: list[Tensor], mode: str) -> int:
    """The bytes of a form's operators in a mode of `passes.MODES`."""
    with OperatorBytes() as counted:
        MODES[mode](form, leaves)
    return counted.total


def _stored_bytes(x: Tensor) -> int:
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
