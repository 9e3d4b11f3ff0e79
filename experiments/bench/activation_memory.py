"""Bytes that a forward pass saves for its backward."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def saved_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of all tensors made by `forward` that are alive while its result is: the result, and what autograd saved.

    Counted by storage, on any device; nested hooks on saved tensors would miss tensors that the others pack.
    """
    with _StoragesMade() as made:
        result = forward()
    gc.collect()
    saved = sum(size for storage, size in made.storages.values() if not storage.expired())
    del result
    return saved


class _StoragesMade(TorchDispatchMode):
    """Records every storage that operators return, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # Views of existing tensors and results written in place have no storage of their own.
        before = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and _address(x) not in before:
                storage = x.untyped_storage()
                self.storages[len(self.storages)] = StorageWeakRef(storage), storage.nbytes()
        return result


def _address(x: Tensor) -> int:
    return torch.Tensor.untyped_storage(x)._cdata
