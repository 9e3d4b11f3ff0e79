"""Ctrl-C where it cannot be caught as an exception: while modules load, and in worker processes.

Imports nothing that takes time: it has to be there before everything else is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator

INTERRUPTED = "interrupted; the same command goes on from the last checkpoint"
STATUS = 130  # what shells know for Ctrl-C


def exit_at_once() -> None:
    """Let Ctrl-C end the process with one line from now on, unless it is ignored.

    While modules load, an exception would be raised anywhere in them, and be lost where they swallow it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os.write(2, f"error: {INTERRUPTED}\n".encode())
    os._exit(STATUS)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For imports that take seconds: while inside, Ctrl-C ends the process with one line. Nothing may be half-done.

    The garbage collector rests, for modules stay: looking through them again and again takes a fifth of the time.
    """
    before, collecting = signal.getsignal(signal.SIGINT), gc.isenabled()
    exit_at_once()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """While inside, Ctrl-C raises KeyboardInterrupt, also after `exit_at_once`."""
    before = signal.getsignal(signal.SIGINT)
    if before is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """While inside, Ctrl-C is blocked, for good in processes started there: their parent ends them.

    A signal that arrives in this process meanwhile is delivered at the end.
    """
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # a process that, started inside, would let Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
