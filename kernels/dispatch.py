"""From a call of an operation to the backend that serves it: checks of its arguments, its dtype, and the choice.

An `Operation` holds the backends of one operation. Each is a function, a test that says why it cannot serve a
call, and a test that says whether `backend="auto"` may take it. `auto` asks them in the order of their
registration and takes the first that suits the call and does not refuse it. A backend that is named is used or
refused with the reason; it is never silently replaced.

Before, a public function checks its arguments (`check_attention` for all operations of attention) and takes the dtype
that autocast asks for, so that backends are chosen by what runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])


def constant_when_traced(function: F) -> F:
    """The function, for whose result a compiler that traces a call takes what it returns then.

    `torch.compiler.assume_constant_result` is the same and imports the compiler, which takes as long as PyTorch itself.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def never(*_args, **_options) -> None:
    """Refuse nothing: the `refuses` of a backend that serves every call."""


def always(*_args, **_options) -> bool:
    """Return True: the `suits` of a backend that `auto` may take for any call."""
    return True


def only_when_named(*_args, **_options) -> bool:
    """Return False: the `suits` of a backend that `auto` never takes."""
    return False


def on_cuda(first: Tensor, *_args, **_options) -> bool:
    """Return whether a call's first tensor, of any shape [...], is on a GPU.

    The `suits` of Triton kernels, which `auto` never takes in the interpreter.
    """
    return first.is_cuda


def one_token(q: Tensor, *_args, cu_seqlens: Tensor | None = None, **_options) -> bool:
    """Return whether q [B, T, ...] is one decoding step, T = 1 and nothing packed: the `suits` of a recurrence.

    Chunking and sorting save nothing there.
    """
    return q.shape[1] == 1 and cu_seqlens is None


class Unserved(ValueError):
    """No backend, or not the one that was named, takes a call; the message says why."""


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
        backend = self._backends[name]
        self._backends[name] = dataclasses.replace(backend, **functions)
        try:
            yield
        finally:
            self._backends[name] = backend

    @contextlib.contextmanager
    def rehearsed(self, name: str, refuses: Callable[..., str | None]) -> Iterator[None]:
        """While inside, the backend `name`, if there is one, is asked by `refuses`, and "torch" computes for it.

        refuses: as a backend's own, which it is given first.
        """
        if name not in self._backends:
            yield
            return
        backend = self._backends[name]
        computing = self._backends.get("torch", backend)
        with self.override(name, refuses=functools.partial(refuses, backend.refuses), run=computing.run):
            yield

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the registered backends, in the order in which `auto` asks them."""
        return tuple(self._backends)

    def refusals(self, *args, **options) -> dict[str, str | None]:
        """Return for every backend why it cannot serve this call (None: it can)."""
        return {name: backend.refuses(*args, **options) for name, backend in self._backends.items()}

    def choose(self, backend: str, *args, **options) -> Backend:
        """Return the backend that serves this call: the one that is named, or for "auto" the first that suits it.

        Raises Unserved if `backend` is unknown, or known and unable to serve the call.
        """
        if backend == "auto":
            for candidate in self._backends.values():
                if candidate.suits(*args, **options) and candidate.refuses(*args, **options) is None:
                    return candidate
            raise Unserved(f"{self.name}: no backend serves this call: {self._reasons(*args, **options)}")
        if backend not in self._backends:
            raise Unserved(self._unknown(backend))
        chosen = self._backends[backend]
        reason = chosen.refuses(*args, **options)
        if reason is not None:
            able = [name for name, why in self.refusals(*args, **options).items() if why is None]
            raise Unserved(
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
                f"{self.name} has no backend {backend!r}; with 'auto' every operation takes the best it has. "
                f"Known: {', '.join(known)}"
            )
        close = difflib.get_close_matches(str(backend), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return f"{self.name}: unknown backend {backend!r}{hint} Known: {', '.join(known)}"


def registered_backends() -> list[str]:
    """Return the names of all backends that any operation has, in alphabetical order."""
    return sorted({name for operation in Operation.every for name in operation.backends})


def check_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Raise ValueError if q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V] do not fit each other."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"{name} needs q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], got {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{name}: batch, key length, KV heads or key width differ: {shapes}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"{name} needs a number of query heads divisible by the KV heads, got {shapes}")
    if causal and q.shape[1] > k.shape[1]:
        raise ValueError(f"causal {name} needs no more queries than keys, got {shapes}")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"{name} needs window ≥ 1 with causal=True, got window={window}, causal={causal}")
    if cu_seqlens is not None:
        check_packed(name, q, k, cu_seqlens)


def check_packed(name: str, q: Tensor, k: Tensor, cu_seqlens: Tensor) -> None:
    """Raise ValueError unless cu_seqlens, int32 [N+1], rises from 0 to T and packs q [1, T, ...] and k [1, T, ...].

    Values are read on CPUs only.
    """
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype != torch.int32:
        raise ValueError(
            f"{name} needs cu_seqlens int32 [N+1], got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if q.shape[0] != 1 or q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{name} with cu_seqlens needs B = 1 and Tq = Tk, got q {tuple(q.shape)}, k {tuple(k.shape)}"
        )
    # Reading the values on a GPU would wait for it, and a trace has none.
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != q.shape[1] or ends != sorted(ends):
            raise ValueError(f"{name} needs cu_seqlens to rise from 0 to T = {q.shape[1]}, got {ends}")


def in_autocast_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors [...] as autocast would hand them to SDPA, so that backends are chosen by the dtype that runs.

    Shapes stay. Outside autocast the dtypes must agree; raises ValueError if not.
    """
    if autocasts(tensors[0]):
        dtype = torch.get_autocast_dtype(tensors[0].device.type)
        return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)
    if len({x.dtype for x in tensors}) > 1:
        raise ValueError(f"q, k, v must have one dtype, got {', '.join(str(x.dtype) for x in tensors)}")
    return tensors


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context without autocast where x [...] lives: products have the dtype of their factors."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocasts(x: Tensor) -> bool:
    """Return whether autocast is on where x [...] lives; the meta device has none, and asking it is an error."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def only_sizes(x: Tensor) -> bool:
    """Return whether x [...] has a size and no values.

    So it is on the meta device, as a fake tensor, and while a compiler traces.
    """
    return torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor)


def reverse_mode_only(operation: str, *tensors: Tensor | None) -> None:
    """Raise NotImplementedError if one of the tensors, of any shape [...], carries a tangent.

    That is how torch.func.jvp differentiates. PyTorch's custom operators drop tangents without a word.
    """
    if any(x is not None and _may_have_tangent(x) for x in tensors):
        raise NotImplementedError(
            f"{operation} has no forward-mode derivatives (torch.func.jvp): "
            'use torch.autograd.grad, or backend="reference"'
        )


def _may_have_tangent(x: Tensor) -> bool:
    """Return whether x [...] has a tangent or, while a compiler traces and does not see them, could have one."""
    if torch.compiler.is_compiling():
        return forward_ad._current_level >= 0
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return forward_ad.unpack_dual(x).tangent is not None
