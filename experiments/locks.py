"""Locks between processes, by files. The system frees them when the holder ends, also when it is killed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, message: str, *, wait: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Hold the lock file at `path` (flock) while inside; made where it is missing, left when done.

    message: printed to `stream` (null: standard output) before waiting for another process.
    Raises Held where wait is False and another process holds it; OSError where the file cannot be opened, as in a
    folder that may not be written to.
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise Held(f"{path} is held by another process") from None
        print(message, file=stream or sys.stdout, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
