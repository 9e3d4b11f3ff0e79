"""A computation that runs twice: once for its results, and again when the backward asks for its saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Replay:
    """Drops the tensors that a computation saves for its backward, and its outputs; recomputes them when asked.

    function: runs the computation once more, on saved inputs, and returns its outputs, at least one.

    Only the graph refers to it, and it refers to nothing of the graph, so that memory is freed as soon as the backward
    is done. Until then recomputed tensors stay: a backward may ask for the same one twice.
    """

    def __init__(self, function: Callable[[], Sequence[Tensor]], like: Tensor) -> None:
        self.function = function
        self.count = 0
        self.saved: dict[int, Tensor] = {}
        self.outputs: list[Tensor] = []
        self.autocast = _autocast(like)

    def dropping(self) -> saved_tensors_hooks:
        """While inside, autograd saves numbers in place of tensors."""
        return saved_tensors_hooks(self._number, self._tensor)

    def output(self, index: int) -> Tensor:
        """One of the outputs, without a graph, in the shape [...] that the function gave it."""
        if not self.outputs:
            self._repeat()
        return self.outputs[index]

    def _number(self, _: Tensor) -> int:
        self.count += 1
        return self.count - 1

    def _tensor(self, number: int) -> Tensor:
        if number not in self.saved:
            self._repeat()
        return self.saved[number]

    def _repeat(self) -> None:
        again: list[Tensor] = []
        collecting = saved_tensors_hooks(lambda x: again.append(x.detach()), _no_backward)
        with torch.enable_grad(), torch.autocast(**self.autocast), collecting:
            self.outputs = [x.detach() for x in self.function()]
        if len(again) != self.count:
            raise RuntimeError(f"computed again, {len(again)} tensors were saved in place of {self.count}")
        self.saved = dict(enumerate(again))


def leaf(x: Tensor) -> Tensor:
    """The same values as a leaf of a new graph: x [...] -> [...], which requires a gradient where x does."""
    return x.detach().requires_grad_(x.requires_grad)


def _autocast(x: Tensor) -> dict[str, Any]:
    """The arguments of `torch.autocast` for the state it is in now; its cache would keep recomputed tensors alive."""
    device = x.device.type
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
        "cache_enabled": False,
    }


def _no_backward(_: object) -> Tensor:
    raise RuntimeError("what is computed again has no backward of its own")
