"""The compiler of kernels for a CPU and its cache on disk; exp and log."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

# Compiled kernels on disk, a folder for each state of all kernels' sources; what cannot be read is compiled anew.

KERNELS = Path(__file__).parent.parent


def cached(kernel: Callable) -> Callable:
    """Return a kernel, as `numba.njit` makes it, that keeps its machine code on disk where a folder can be written."""
    folder = cache_folder()
    if folder is None:
        return kernel
    own = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder
    try:
        cache = SafeCache(kernel.py_func)
    except RuntimeError:  # by none of the ways in which Numba is told to look for a folder
        return kernel
    finally:
        numba.config.CACHE_DIR = own
    if Path(cache.cache_path).is_relative_to(folder):  # Numba may have found another, which knows no sources
        kernel._cache = cache  # as `enable_caching` does with Numba's own class
    return kernel


class SafeCache(FunctionCache):
    """Numba's cache of one function, which no full disk and no power cut makes an error."""

    def load_overload(self, signature, target_context):
        """Return the compiled function for these types, None if it is not there or cannot be read."""
        try:
            return super().load_overload(signature, target_context)
        except Exception:  # what is no pickle may raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature, data) -> None:
        """Keep the compiled function for these types, if there is room."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)


@functools.cache
def cache_folder() -> str | None:
    """The folder of compiled kernels for the sources as they are; None where none can be written.

    Numba knows the file of a kernel alone, and not those of the functions that it calls: so each state of all sources
    has a folder of its own.
    """
    digest = hashlib.sha256()
    # By what they say, not by their names: compiled functions may stand in any file, and any such file imports Numba.
    for path in sorted(KERNELS.rglob("*.py")):
        if b"numba" in (source := path.read_bytes()):
            digest.update(source)
    name = f"numba-{digest.hexdigest()[:16]}"
    return next((str(base / name) for base in _bases() if _is_writable(base / name)), None)


def _bases() -> Iterator[Path]:
    """Where such folders may stand: as the environment says, else beside the sources, else in the user's cache."""
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR)
        return
    yield KERNELS / "__pycache__"
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(user):  # a user may have no home
        yield Path(user) / "archzoo"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


# The compiler with one set of options for all kernels.

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


# exp and log of fp32 in plain arithmetic, which compiles to vectors where calls of a library would not.

F = np.float32
I = np.int32  # noqa: E741 - beside F

INFINITE = F(np.inf)

LOWEST, HIGHEST = F(-87.0), F(88.0)
"""Arguments between which e^x is a normal number."""

LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)
"""ln 2 as a sum whose first term has few bits, so that its products with small integers are exact."""

ROOT_HALF = I(0x3F3504F3)
"""The bits of √½."""


@intrinsic
def from_bits(_context, bits):
    """The fp32 whose bits are an int32's."""

    def code(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


@intrinsic
def to_bits(_context, x):
    """The bits of an fp32 as an int32."""

    def code(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), code


@compiled(EXACT, inline=True)
def exp32(x):
    """e^x within 1e-7 of it for −87 ≤ x ≤ 88, beyond these the value there; NaN stays.

    2^n·e^r with |r| ≤ ln 2/2 and a polynomial of degree 7 (Moshier's Cephes, expf).
    """
    inside = x if x > LOWEST else LOWEST
    inside = inside if inside < HIGHEST else HIGHEST
    n = np.rint(inside * F(1.44269504))
    r = inside - n * LN2_HIGH - n * LN2_LOW
    p = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    y = (p * r * r + r + F(1)) * from_bits(I((I(n) + I(127)) << I(23)))
    return y if x == x else x


@compiled(EXACT, inline=True)
def log32(x):
    """ln x within 1e-7·max(|ln x|, 1e-2) of it, for normal x > 0.

    x = 2^n·(1 + m) with √½ ≤ 1 + m < √2 and a polynomial of degree 9 (Moshier's Cephes, logf).
    """
    bits = to_bits(x) - ROOT_HALF
    n = F(bits >> I(23))
    m = from_bits(I((bits & I(0x007FFFFF)) + ROOT_HALF)) - F(1)
    p = F(7.0376836292e-2) * m + F(-1.1514610310e-1)
    p = p * m + F(1.1676998740e-1)
    p = p * m + F(-1.2420140846e-1)
    p = p * m + F(1.4249322787e-1)
    p = p * m + F(-1.6668057665e-1)
    p = p * m + F(2.0000714765e-1)
    p = p * m + F(-2.4999993993e-1)
    p = p * m + F(3.3333331174e-1)
    y = p * m * m * m + n * LN2_LOW - F(0.5) * m * m
    return m + y + n * LN2_HIGH
