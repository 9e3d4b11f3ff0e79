"""Under Triton's interpreter every place that a kernel reads or writes lies in one of the tensors it was given.

A GPU stops a process that leaves its memory, but not one that reads a neighbour's; the interpreter reads whatever is
there. So this looks at every address of every load and store that no mask hides.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

_ACCESSES = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}
"""The interpreter's accesses to memory -> places of the pointers and of the mask among their arguments."""


@pytest.fixture(scope="session", autouse=True)
def kernels_stay_in_their_tensors() -> Iterator[None]:
    """For all tests of a folder whose conftest imports it."""
    with bounds_checked():
        yield


@contextmanager
def bounds_checked() -> Iterator[None]:
    """While inside, an access outside the tensors of its launch raises IndexError."""
    given = Spans()
    patches = [mock.patch.object(interpreter.GridExecutor, "_init_args_hst", given.noting())]
    patches += [
        mock.patch.object(interpreter.InterpreterBuilder, name, given.checking(name)) for name in _ACCESSES
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


class Spans:
    """The first byte and the end of every tensor of the launch that runs."""

    def __init__(self) -> None:
        self.starts = self.ends = np.empty(0, np.uint64)
        self.names = ""

    def noting(self) -> Any:
        """`_init_args_hst`, which notes the tensors that it returns."""
        original = interpreter.GridExecutor._init_args_hst

        def note(executor: Any, args: Any, options: dict[str, Any]) -> Any:
            found = original(executor, args, options)
            self.names = executor.fn.__name__
            self._set(x for x in _tensors([*found[0], *found[1].values()]))
            return found

        return note

    def checking(self, name: str) -> Any:
        """The interpreter's function of that name, which first looks at its addresses."""
        original = getattr(interpreter.InterpreterBuilder, name)
        pointers, mask = _ACCESSES[name]

        def check(builder: Any, *arguments: Any) -> Any:
            self._check(arguments[pointers], arguments[mask], name)
            return original(builder, *arguments)

        return check

    def _set(self, tensors: Iterable[torch.Tensor]) -> None:
        spans = sorted((x.data_ptr(), x.data_ptr() + _bytes_spanned(x)) for x in tensors if x.numel())
        self.starts, self.ends = (np.array([s[i] for s in spans], np.uint64) for i in range(2))
        # Views may lie inside one another: an end counts for all that start later.
        self.ends = np.maximum.accumulate(self.ends) if len(spans) else self.ends

    def _check(self, pointers: Any, mask: Any, name: str) -> None:
        places = pointers.data.astype(np.uint64)
        seen = places[np.broadcast_to(mask.data.astype(bool), places.shape)]
        if not seen.size:
            return
        width = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        at = np.searchsorted(self.starts, seen, side="right")
        inside = at > 0
        inside[inside] = (seen[inside] + width) <= self.ends[at[inside] - 1]
        if not inside.all():
            raise IndexError(
                f"kernel {self.names}: {name.removeprefix('create_')} of {int((~inside).sum())} places outside of "
                "all its tensors"
            )


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for x in values:
        if isinstance(x, tuple | list):
            yield from _tensors(x)
        elif hasattr(x, "data_ptr"):
            yield interpreter._unwrap_tensor(x)


def _bytes_spanned(x: torch.Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size()
