"""Numba's compiler with one set of options."""

from __future__ import annotations

from collections.abc import Callable

import numba

from kernels.numba_common.cache import cached

EXACT = {"contract"}
"""Products and sums may become one rounding; nothing else changes, so that equal inputs give equal results."""

FAST = {"contract", "reassoc", "arcp", "nsz"}
"""Sums in any order, as vectors need them. Numbers that are none stay so."""


def compiled(flags: set[str], inline: bool = False) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function at its first call, for the types that it is called with.

    flags: EXACT or FAST, what the compiler may do with sums. inline: whether to compile it as a part of its callers.
    """
    options = {"fastmath": flags, "boundscheck": False, "error_model": "numpy", "nogil": True}

    def decorate(function: Callable) -> Callable:
        if inline:
            return numba.njit(inline="always", **options)(function)
        return cached(numba.njit(**options)(function))

    return decorate
