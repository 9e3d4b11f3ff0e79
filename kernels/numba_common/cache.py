"""Compiled kernels on disk, a folder for each state of all kernels' sources; what cannot be read is compiled anew."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
from numba.core.caching import FunctionCache

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
