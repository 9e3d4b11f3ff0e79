"""Arithmetic that runs twice: once for its results, and again when the backward asks for what it saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Replay:
    """Drops the tensors that arithmetic saves for its backward, and its outputs; makes them again when asked.

    function: runs the arithmetic once more, on saved inputs, and returns its outputs, at least one.

    Only the graph holds on to it, and it to nothing of the graph, so that memory is free as soon as the backward is
    past. Until then what was made again stays: a backward may ask for the same tensor twice.
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
        """One of the outputs, without a graph."""
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
    """The same numbers as the beginning of a graph of its own."""
    return x.detach().requires_grad_(x.requires_grad)


def _autocast(x: Tensor) -> dict[str, Any]:
    """The autocast that is on now, for `torch.autocast`; its cache would hold on to what is made again."""
    device = x.device.type
    return {
        "device_type": device,
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
        "cache_enabled": False,
    }


def _no_backward(_: object) -> Tensor:
    raise RuntimeError("what is computed again has no backward of its own")
