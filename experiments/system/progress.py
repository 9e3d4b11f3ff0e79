"""Progress reports: a bar in a terminal, or messages to the process that runs a sweep."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from tqdm import tqdm

MIN_SECONDS = 0.2  # between two refreshes


class Sink(Protocol):
    """A receiver of progress reports: a phase ("train", "test"), steps done, their total, and a short note."""

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None: ...


class Bar:
    """A sink that draws one tqdm bar on stderr a phase, with the time left; it draws nothing when not enabled."""

    def __init__(self, title: str, enabled: bool = True) -> None:
        self.title, self.enabled = title, enabled
        self.bar: Any = None
        self.phase = ""

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None:
        if not self.enabled:
            return
        if phase != self.phase:
            self.close()
            self.phase = phase
            self.bar = tqdm(
                total=total,
                initial=done,
                desc=f"{self.title}: {phase}",
                file=sys.stderr,
                mininterval=MIN_SECONDS if sys.stderr.isatty() else 5.0,
                dynamic_ncols=True,
                leave=True,
            )
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class ThrottledSender:
    """A sink that sends tuples (phase, done, total, note) through a callable, a few a second at most."""

    def __init__(self, send: Callable[[tuple[str, int, int, str]], None]) -> None:
        self.send, self.last, self.phase = send, 0.0, ""

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if phase == self.phase and done < total and now - self.last < MIN_SECONDS:
            return
        self.last, self.phase = now, phase
        self.send((phase, done, total, note))

    def close(self) -> None:
        """Do nothing: nothing is held open."""


def discard(phase: str, done: int, total: int, note: str = "") -> None:
    """A sink that nobody listens to."""
