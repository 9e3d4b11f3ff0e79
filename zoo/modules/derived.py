"""Tensors that parameters determine, computed once for many steps of decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook


class Derived:
    """The result of a computation on parameters, kept until one of them changes.

    A change is another storage, dtype or version of a tensor, or a step of any optimiser of torch.optim (fused ones
    leave versions as they are): training and loading a checkpoint are seen, writing through `.data` is not. For use
    under torch.no_grad() only.
    """

    optimizer_steps: ClassVar[int] = 0
    """Of all optimisers in this process."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None
        self._storages: list = []

    def __call__(self, compute: Callable[[], Any], *sources: Tensor) -> Any:
        """compute(), which depends on the sources and on nothing else that changes."""
        key = _key(sources, self.optimizer_steps)
        if key is None or key != self._key:
            self._value, self._key = compute(), key
            # Held, lest a new tensor take a replaced one's place in memory and pass for it.
            self._storages = [x.untyped_storage() for x in sources]
        return self._value


def _key(sources: tuple[Tensor, ...], optimizer_steps: int) -> list | None:
    """Place in memory, dtype and version of every tensor, and the steps; None where no versions are counted."""
    try:
        return [optimizer_steps, *((x.data_ptr(), x.dtype, x._version) for x in sources)]
    except RuntimeError:  # tensors made in inference mode
        return None


def _count_step(*_: Any) -> None:
    Derived.optimizer_steps += 1


register_optimizer_step_post_hook(_count_step)
