"""Being told to make room: a flag that a signal sets, and that training acts upon at the end of a step.

A process that trains is told once (its job is about to be preempted, or its time is up). The end of the step is where a
checkpoint loses nothing; `callbacks.Pause` writes it and stops. Where a process waits for another one there is nothing
to save, and `locks` stops at once. Imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

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


def pause_on_from_others(number: signal.Signals, own: int) -> None:
    """`pause_on`, but where process `own` sends the signal it ends this one.

    To be called before other threads start: they inherit that it is blocked, so that one of them can ask who sent it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    threading.Thread(target=_ask_who_sent, args=(number, own), daemon=True).start()


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


def _ask_who_sent(number: signal.Signals, own: int) -> None:
    while signal.sigwaitinfo({number}).si_pid != own:
        _receive(number)
    os._exit(128 + number)


def _tell(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(process, PASSED_ON)
