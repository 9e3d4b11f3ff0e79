"""Kernels of other libraries, where they are installed: one file a peer, imported only when that is timed.

A file has `refuses(device)`, why it cannot be used here (None: it can), and `CALLS`: the name of a case -> a function
of the case's calls that gives a function without arguments, which runs the peer and returns its outputs. A peer
computes the same kind of thing on the same tensors, not always the same numbers: the file says where it differs.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from experiments.bench.cases import Call

UPPER_BOUNDS = frozenset({"copy"})
"""Forms that no kernel can beat; timed for comparison, not as peers."""


@functools.cache
def _files() -> dict[str, ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names if name != "shared"}


def unavailable(device: torch.device) -> dict[str, str]:
    """Peer -> why it cannot be used on this device, of those that cannot."""
    reasons = {name: module.refuses(device) for name, module in _files().items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def peers_of(case: str, calls: list[Call], device: torch.device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The peers of a case that can be used on this device, as (name, function that runs it)."""
    for name, module in _files().items():
        if case in module.CALLS and module.refuses(device) is None:
            yield name, _lazily(module.CALLS[case], calls)


def form(peer: str, case: str, calls: list[Call]) -> Callable[[], Any]:
    """The function that runs this peer's form of a case; whether it can be used here is not asked."""
    return _lazily(_files()[peer].CALLS[case], calls)


def _lazily(make: Callable[[list[Call]], Callable[[], Any]], calls: list[Call]) -> Callable[[], Any]:
    """Return a function that makes the peer at its first call: a failed import is then a failure of this peer alone."""
    made = functools.cache(lambda: make(calls))
    return lambda: made()()
