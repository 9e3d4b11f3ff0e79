"""Signals: Ctrl-C where it cannot be an exception, and a flag that asks a run to make room.

Imports nothing that takes time: it has to be there before everything else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

# Ctrl-C while modules load, and in worker processes.

INTERRUPTED = "interrupted; the same command resumes from the last checkpoint"
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

    The garbage collector rests, and never looks at what is there at the end, for modules stay: looking through them
    again and again takes a fifth of the time.
    """
    before, collecting = signal.getsignal(signal.SIGINT), gc.isenabled()
    exit_at_once()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
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
    with held():
        yield


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back for a moment; it is delivered at the end. Starts no process, where `blocked` may start one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Making room: a process that trains is told once (its job is about to be preempted, or its time is up) and acts upon
# it at the end of a step, where a checkpoint loses nothing; `callbacks.Pause` writes it and stops. Where a process
# waits for another one there is nothing to save, and `locks` stops at once.

PASSED_ON = signal.SIGUSR2
"""The signal that tells the processes of a run what the one that started them was told."""


class Paused(RuntimeError):
    """A run stopped before its last step (trainer.max_minutes, trainer.pause_at, or its process was told to).

    What it had done is in its checkpoint, to go on from.
    """


_received: list[int] = []
_others: list[int] = []


def pause_on(*numbers: signal.Signals) -> None:
    """From now on these signals ask this process to pause: to make room for others."""
    for number in numbers:
        signal.signal(number, lambda number, frame: _receive(number))


def pause_on_from_others(number: signal.Signals, pid: int) -> None:
    """`pause_on`, but where process `own` sends the signal it ends this one.

    To be called before other threads start: they inherit that it is blocked, so that one of them can ask who sent it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    threading.Thread(target=_ask_who_sent, args=(number, pid), daemon=True).start()


def received() -> signal.Signals | None:
    """Return the first signal that asked this process to pause; None: none has."""
    return signal.Signals(_received[0]) if _received else None


def pass_on_to(process: int) -> None:
    """Send PASSED_ON to another process, which pauses on it, once this one is asked to pause or if it has been."""
    _others.append(process)
    if _received:
        _tell(process)


@contextlib.contextmanager
def passing_on() -> Iterator[None]:
    """While inside, `pass_on_to` holds; afterwards its processes have ended, and their numbers may be others'."""
    try:
        yield
    finally:
        _others.clear()


def _receive(number: int) -> None:
    _received.append(number)
    for process in _others:
        _tell(process)


def _ask_who_sent(number: signal.Signals, pid: int) -> None:
    while signal.sigwaitinfo({number}).si_pid != pid:
        _receive(number)
    os._exit(128 + number)


def _tell(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(process, PASSED_ON)
