"""Which backend serves a call, and why not.

An `Operation` holds the backends of one operation. Each is a function, a test that says why it cannot serve a
call, and a test that says whether `backend="auto"` may take it. `auto` asks them in the order of their
registration and takes the first that suits the call and does not refuse it. A backend that is named is used or
refused with the reason; it is never silently replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


def never(*_args, **_options) -> None:
    """Refuse nothing: the `refuses` of a backend that serves every call."""


def always(*_args, **_options) -> bool:
    """Return True: the `suits` of a backend that `auto` may take for any call."""
    return True


def only_when_named(*_args, **_options) -> bool:
    """Return False: the `suits` of a backend that `auto` never takes."""
    return False


def on_cuda(first: Tensor, *_args, **_options) -> bool:
    """Return whether a call is on a GPU: the `suits` of Triton kernels, which `auto` never takes in the interpreter."""
    return first.is_cuda


def one_token(q: Tensor, *_args, cu_seqlens: Tensor | None = None, **_options) -> bool:
    """Return whether q [B, T, ...] is one decoding step, T = 1 and nothing packed: the `suits` of a recurrence.

    Chunking and sorting save nothing there.
    """
    return q.shape[1] == 1 and cu_seqlens is None


@dataclass(frozen=True)
class Backend:
    """One implementation of an operation.

    name     the value of a call's `backend` that selects it
    run      the function; takes the call's arguments
    refuses  the same arguments -> None, or a short reason such as "needs CUDA tensors, got cpu"
    suits    the same arguments -> whether `auto` may take this backend
    """

    name: str
    run: Callable[..., Tensor]
    refuses: Callable[..., str | None]
    suits: Callable[..., bool]


class Operation:
    """The backends of one operation and the choice between them; calling it runs the chosen one."""

    every: ClassVar[list[Operation]] = []
    """All operations, in the order in which they were made."""

    def __init__(self, name: str) -> None:
        Operation.every.append(self)
        self.name = name
        self._backends: dict[str, Backend] = {}

    def register(
        self,
        name: str,
        run: Callable[..., Tensor],
        *,
        refuses: Callable[..., str | None] = never,
        suits: Callable[..., bool] = always,
    ) -> None:
        """Add a backend after those that are there: `auto` asks earlier ones first.

        Raises ValueError if the operation has a backend of that name.
        """
        if name in self._backends:
            raise ValueError(f"{self.name}: backend {name!r} is registered twice")
        self._backends[name] = Backend(name, run, refuses, suits)

    @contextlib.contextmanager
    def override(self, name: str, **functions: Callable) -> Iterator[None]:
        """While inside, the backend `name` has other functions: any of `run`, `refuses` and `suits`.

        For benches and tests, on one thread. Raises ValueError for a backend that is not registered.
        """
        if name not in self._backends:
            raise ValueError(self._unknown(name))
        own = self._backends[name]
        self._backends[name] = dataclasses.replace(own, **functions)
        try:
            yield
        finally:
            self._backends[name] = own

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the registered backends, in the order in which `auto` asks them."""
        return tuple(self._backends)

    def refusals(self, *args, **options) -> dict[str, str | None]:
        """Return for every backend why it cannot serve this call (None: it can)."""
        return {name: backend.refuses(*args, **options) for name, backend in self._backends.items()}

    def choose(self, backend: str, *args, **options) -> Backend:
        """Return the backend that serves this call: the one that is named, or for "auto" the first that suits it.

        Raises ValueError if `backend` is unknown, or known and unable to serve the call.
        """
        if backend == "auto":
            for candidate in self._backends.values():
                if candidate.suits(*args, **options) and candidate.refuses(*args, **options) is None:
                    return candidate
            raise ValueError(f"{self.name}: no backend serves this call: {self._reasons(*args, **options)}")
        if backend not in self._backends:
            raise ValueError(self._unknown(backend))
        chosen = self._backends[backend]
        reason = chosen.refuses(*args, **options)
        if reason is not None:
            able = [name for name, why in self.refusals(*args, **options).items() if why is None]
            raise ValueError(
                f"{self.name}: backend {backend!r} cannot serve this call: {reason}; "
                f"those that can: {', '.join(able) or 'none'}"
            )
        return chosen

    def __call__(self, *args, backend: str = "auto", **options) -> Tensor:
        """Run the operation on the backend that `choose` returns, with its errors."""
        return self.choose(backend, *args, **options).run(*args, **options)

    def _reasons(self, *args, **options) -> str:
        reasons = self.refusals(*args, **options)
        return "; ".join(f"{name}: {why or 'runs only when named'}" for name, why in reasons.items())

    def _unknown(self, backend: str) -> str:
        known = ("auto", *self._backends)
        if backend in registered_backends():
            return (
                f"{self.name} has no form {backend!r}; with 'auto' every operation takes the best that it has. "
                f"Known: {', '.join(known)}"
            )
        close = difflib.get_close_matches(str(backend), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return f"{self.name}: unknown backend {backend!r}{hint} Known: {', '.join(known)}"


def registered_backends() -> list[str]:
    """Return the names of all backends that any operation has, in alphabetical order."""
    return sorted({name for operation in Operation.every for name in operation.backends})
