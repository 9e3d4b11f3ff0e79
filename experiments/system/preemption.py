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


_told: list[int] = []
_others: list[int] = []


def heed(*numbers: signal.Signals) -> None:
    """From now on take these signals for being told to make room."""
    for number in numbers:
        signal.signal(number, lambda received, frame: _receive(received))


def heed_from_others(number: signal.Signals, own: int) -> None:
    """From now on take this signal for being told to make room, but for the end where process `own` sends it.

    To be called before other threads start: they inherit that it is blocked, so that one of them can ask who sent it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    threading.Thread(target=_ask_who_sent, args=(number, own), daemon=True).start()


def told() -> signal.Signals | None:
    """The first signal that told this process to make room; None: none has."""
    return signal.Signals(_told[0]) if _told else None


def pass_on_to(process: int) -> None:
    """Tell another process too, now or when this one is told; it heeds PASSED_ON."""
    _others.append(process)
    if _told:
        _tell(process)


@contextlib.contextmanager
def passing_on() -> Iterator[None]:
    """While inside, `pass_on_to` holds; afterwards its processes have ended, and their numbers may be others'."""
    try:
        yield
    finally:
        _others.clear()


def _receive(number: int) -> None:
    _told.append(number)
    for process in _others:
        _tell(process)


def _ask_who_sent(number: signal.Signals, own: int) -> None:
    while signal.sigwaitinfo({number}).si_pid != own:
        _receive(number)
    os._exit(128 + number)


def _tell(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(process, PASSED_ON)
