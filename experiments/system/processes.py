"""What a process tells while it works: progress, as a bar or through a callable, and messages to who started it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

# Progress.

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


def drop_output() -> None:
    """Discard output that cannot be written, or the interpreter fails again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


# Messages: lines on the standard output of a run's processes, among other words, to the process that started them.

MARK = "\x1e"
"""The first character of a line that is a message."""


def tell(**message: Any) -> None:
    """Send a short message from a process of a run, in one write, which others' do not cut."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"{MARK}{json.dumps(message)}\n".encode())


def tell_failure(folder: Path, record: dict[str, Any]) -> None:
    """Send the record of a failure: in a file of `folder`, for what several processes write into one pipe is kept
    apart only as long as it is short (PIPE_BUF, 4,096 bytes on Linux), which tracebacks are not.
    """
    place = folder / f"failure-{os.getpid()}.json"
    place.write_text(json.dumps(record), encoding="utf-8")
    tell(outcome="failed", record=place.name)


def parse(lines: Iterable[str], folder: Path) -> Iterator[dict[str, Any]]:
    """The messages among the lines of the processes' output, as they come; other words are printed.

    folder: where records of failures stand (`tell_failure`); they are read.
    """
    for line in lines:
        # A message may come between another process's words and their end.
        words, mark, text = line.partition(MARK)
        print(words, end="", flush=True)
        if not mark:
            continue
        message = json.loads(text)
        if "record" in message:
            message["record"] = json.loads((folder / message["record"]).read_text(encoding="utf-8"))
        yield message
