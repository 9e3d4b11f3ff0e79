"""Training a tokenizer while signals are handled and the progress is told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm import tqdm

from experiments.system import preemption


def train_on(pieces: Iterable[str], call: Callable[[Iterator[str]], None], progress: bool = False) -> None:
    """call(pieces), in a thread of its own: it comes back to Python, which handles signals, at its end only.

    progress: say on stderr how far it is, where it takes long. Raises what the pieces or ``call`` raise, and Paused
    where room is to be made. The thread then ends while it reads, or with this process.
    """
    work = _Work(pieces, call)
    with tqdm(desc="training a tokenizer: reading", **_bar(progress)) as meter:
        work.start()
        try:
            while work.is_alive():
                work.join(0.1)
                meter.update(work.read - meter.n)
                if not work.reading:
                    meter.set_description_str("training a tokenizer: merging", refresh=False)
                if (told := preemption.received()) is not None:
                    raise preemption.Paused(
                        f"told to make room ({told.name}) while a tokenizer is trained; the same command begins it anew"
                    )
        except BaseException:
            work.stopped = True
            work.join(1)
            raise
    if work.error is not None:
        raise work.error


def _bar(progress: bool) -> dict[str, Any]:
    every = 0.5 if sys.stderr.isatty() else 5.0
    shape = {"bar_format": "{desc}, {n_fmt} characters, {elapsed}", "unit_scale": True}
    return {**shape, "delay": 1, "miniters": 0, "mininterval": every, "disable": not progress}


class _Work(threading.Thread):
    def __init__(self, pieces: Iterable[str], call: Callable[[Iterator[str]], None]) -> None:
        super().__init__(daemon=True)
        self.pieces, self.call = pieces, call
        self.read, self.reading, self.stopped = 0, True, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.call(self._fed())
        except BaseException as error:
            self.error = error

    def _fed(self) -> Iterator[str]:
        for piece in self.pieces:
            if self.stopped:
                raise InterruptedError
            self.read += len(piece)
            yield piece
        self.reading = False
