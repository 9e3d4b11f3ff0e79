"""Which backend serves a call, and why not.

An `Operation` holds the forms of one operation. Each form is a `Backend`: a function, a test that says why
it cannot serve a call, and a test that says whether `backend="auto"` should take it. `auto` walks them in the
order of their registration and takes the first that suits the call and does not refuse it. A backend that is
named is used or refused aloud; it is never silently replaced.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


def never(*_args, **_options) -> None:
    """A `refuses` for a backend that serves every call."""


def always(*_args, **_options) -> bool:
    """A `suits` for a backend that `auto` may take for any call."""
    return True


def not_unasked(*_args, **_options) -> bool:
    """A `suits` for a backend that runs only when it is named."""
    return False


def one_token(q: Tensor, *_args, cu_seqlens: Tensor | None = None, **_options) -> bool:
    """A `suits` for a recurrence: a decoding step, where chunks and sorting gain nothing."""
    return q.shape[1] == 1 and cu_seqlens is None


@dataclass(frozen=True)
class Backend:
    """One form of an operation.

    run      the function; takes the call's arguments
    refuses  the same arguments -> None, or a short reason such as "needs CUDA tensors, got cpu"
    suits    the same arguments -> whether `auto` may take this backend
    """

    name: str
    run: Callable[..., Tensor]
    refuses: Callable[..., str | None]
    suits: Callable[..., bool]


class Operation:
    """The backends of one operation and the choice between them."""

    _all: ClassVar[list[Operation]] = []

    def __init__(self, name: str) -> None:
        Operation._all.append(self)
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
        """Add a backend after those that are there: `auto` asks earlier ones first."""
        if name in self._backends:
            raise ValueError(f"{self.name}: backend {name!r} is registered twice")
        self._backends[name] = Backend(name, run, refuses, suits)

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the registered backends, in the order in which `auto` asks them."""
        return tuple(self._backends)

    def refusals(self, *args, **options) -> dict[str, str | None]:
        """For every backend, why it cannot serve this call (None: it can)."""
        return {name: backend.refuses(*args, **options) for name, backend in self._backends.items()}

    def choose(self, backend: str, *args, **options) -> Backend:
        """The backend that serves this call.

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
        """Run the operation on the chosen backend."""
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
    """The names of all backends that any operation has, in alphabetical order."""
    return sorted({name for operation in Operation._all for name in operation.backends})
