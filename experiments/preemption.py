"""Being told to make room: a flag that a signal sets, and that training acts upon at the end of a step.

A process that trains is told once (its job is about to be preempted, or its time is up). The end of the step is where a
checkpoint loses nothing; `callbacks.Pause` writes it and stops. Imports nothing that takes time.
"""

from __future__ import annotations

import signal

_told: list[int] = []


def heed(*numbers: signal.Signals) -> None:
    """From now on take these signals for being told to make room."""
    for number in numbers:
        signal.signal(number, lambda received, frame: _told.append(received))


def told() -> signal.Signals | None:
    """The first signal that told this process to make room; None: none has."""
    return signal.Signals(_told[0]) if _told else None
