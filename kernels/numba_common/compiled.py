"""What every kernel of Numba needs: its compiler and cache, arrays, exp and log, checks of calls, threads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic
from torch import Tensor
from torch.nn.functional import pad

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


# Tensors as compiled kernels read them: by sequence and KV head, rows filled up with zeros to whole vectors.

WIDTH = 32
"""What the length of a row is a multiple of."""


def by_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """[B, T, H, D] -> [B, Hkv, T, G', D']; zero heads fill up a multiple of four where those cost less than a rest."""
    x = x.unflatten(2, (kv_heads, -1)).transpose(1, 2)
    heads = -x.shape[3] % 4 if x.shape[3] % 4 > 1 else 0
    return padded(x, -x.shape[4] % WIDTH, heads).contiguous()


def padded(x: Tensor, columns: int, rows: int = 0) -> Tensor:
    """x [..., R, D] with zeros behind its last two axes; x itself, where PyTorch would copy it, if there are none."""
    return pad(x, (0, columns, 0, rows)) if columns or rows else x


def by_query(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `by_kv_head`: [B, Hkv, T, G', D'] -> [B, T, H, D], the shape that is wanted, contiguous."""
    kv_heads, (_, _, heads, width) = x.shape[1], shape
    return x[:, :, :, : heads // kv_heads, :width].transpose(1, 2).flatten(2, 3).contiguous()


def keys_by_head(x: Tensor) -> Tensor:
    """[B, T, Hkv, D] -> [B, Hkv, T, D']."""
    return padded(x.transpose(1, 2), -x.shape[3] % WIDTH).contiguous()


def keys_by_position(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `keys_by_head`: [B, Hkv, T, D'] -> [B, T, Hkv, D], as `like` is shaped, contiguous."""
    return x[..., : like.shape[3]].transpose(1, 2).contiguous()


def arrays(tensors: Sequence[Tensor], *at: int) -> tuple[np.ndarray, ...]:
    """The part `at` of every tensor [B, ...], as an array of the same memory."""
    return tuple(array(x[at]) for x in tensors)


def array(x: Tensor) -> np.ndarray:
    """The same memory as an array, which keeps x for as long as it lives.

    Not x.numpy(), which forbids for good that the memory is given back: FSDP does that to gathered parameters.
    """
    return np.from_dlpack(x)


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


# Checks of the calls that a kernel of Numba serves; Numba itself is imported late, as that takes time.


def refusal(*tensors: Tensor) -> str | None:
    """Return why Numba's kernels cannot take these tensors, of any shape [...]; None if they can: fp32 on a CPU."""
    for x in tensors:
        if x.device.type != "cpu":
            return f"needs tensors on a CPU, got {x.device.type}"
        if x.dtype != torch.float32:
            return f"needs float32, got {str(x.dtype).removeprefix('torch.')}"
    return fault()


@torch.compiler.assume_constant_result
def fault() -> str | None:
    """Return why Numba compiles nothing in this process; None if it does."""
    return _fault()


@functools.cache
def _fault() -> str | None:
    try:
        numba = importlib.import_module("numba")
    except (
        Exception
    ) as error:  # it may be missing, or not get on with the versions of other packages that it finds
        return f"numba cannot be imported: {error}"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None


# One kernel on several threads: Numba's code runs without Python's lock.


def in_parts(work: Callable[[int, int], None], sequences: int) -> None:
    """Call work(sequence, part) for `parts_of` parts of every sequence, on as many threads as PyTorch may use.

    Parts write to places of their own, so that results do not depend on which of them is first. Raises what any raises.
    """
    parts = [(b, part) for b in range(sequences) for part in range(parts_of(sequences))]
    threads = min(len(parts), torch.get_num_threads())
    if threads <= 1:
        for b, part in parts:
            work(b, part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, b, part) for b, part in parts]:
            done.result()


def parts_of(sequences: int) -> int:
    """How many parts each of so many sequences has, so that every thread has one."""
    return math.ceil(torch.get_num_threads() / max(1, sequences))
