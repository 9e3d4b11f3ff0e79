"""The most bytes of tensors alive at once, counted by storage as operators make them; on devices and without any."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """live, peak: bytes of the storages that operators made inside, now and at most.

    Storages that an operator was given are not its results: views and results written in place add nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and _address(x) not in given | self._known:
                self._add(x)
        return result

    def _add(self, x: Tensor) -> None:
        storage, address = x.untyped_storage(), _address(x)
        self._known.add(address)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, address, storage.nbytes())

    def _drop(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live -= size


def _address(x: Tensor) -> int:
    return x.untyped_storage()._cdata
