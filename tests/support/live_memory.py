"""The bytes that a computation holds at once, counted by its tensors: the same on every machine."""

import collections
import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """peak: the most bytes of results alive at once. Without gradients: what autograd saves is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._tensors: collections.Counter[int] = collections.Counter()  # tensors alive, by their memory

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        self.live += size if not self._tensors[place] else 0
        self.peak = max(self.peak, self.live)
        self._tensors[place] += 1
        weakref.finalize(tensor, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._tensors[place] -= 1
        self.live -= size if not self._tensors[place] else 0
