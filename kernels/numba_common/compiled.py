"""Numba's compiler with one set of options, and a cache that knows the sources of all kernels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numba

KERNELS = Path(__file__).parent.parent

EXACT = {"contract"}
"""Products and sums may become one rounding; nothing else changes, so that equal inputs give equal results."""

FAST = {"contract", "reassoc", "arcp", "nsz"}
"""Sums in any order, as vectors need them. Numbers that are none stay so."""


@functools.cache
def cache_folder() -> str:
    """The folder of compiled kernels, one for each state of their sources.

    Numba knows the file of a kernel alone, and not those of the functions that it calls.
    """
    digest = hashlib.sha256()
    for path in sorted(KERNELS.rglob("numba_*/*.py")) + sorted(KERNELS.rglob("numba_*.py")):
        digest.update(path.read_bytes())
    return str(KERNELS / "__pycache__" / f"numba-{digest.hexdigest()[:16]}")


def compiled(flags: set[str], inline: bool = False) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function at its first call, for the types that it is called with.

    flags: EXACT or FAST, what the compiler may do with sums. inline: whether to compile it as a part of its callers.
    """
    options = {"fastmath": flags, "boundscheck": False, "error_model": "numpy", "nogil": True}

    def decorate(function: Callable) -> Callable:
        if inline:
            return numba.njit(inline="always", **options)(function)
        kernel = numba.njit(**options)(function)
        own = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = own or cache_folder()
        try:
            kernel.enable_caching()
        except RuntimeError:  # no folder can be written: every process compiles anew
            pass
        finally:
            numba.config.CACHE_DIR = own
        return kernel

    return decorate
