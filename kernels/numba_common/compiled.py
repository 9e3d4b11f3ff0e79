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

    flags: EXACT or FAST, what the compiler may do with sums. inline: whether its callers' flags hold in it too.

    Either way its machine code becomes a part of every caller's. A call would leave the choice to the linker: each
    caller's machine code brings copies of what it calls, optimised with it, and yields them to the function's own code
    where that was compiled in this process. Their sums differ in the last digits, so that the process which compiles
    would not compute what those compute that find the code in the cache.
    """
    options = {"fastmath": flags, "boundscheck": False, "error_model": "numpy", "nogil": True}

    def decorate(function: Callable) -> Callable:
        if inline:
            return numba.njit(inline="always", **options)(function)
        return cached(numba.njit(forceinline=True, **options)(function))

    return decorate
