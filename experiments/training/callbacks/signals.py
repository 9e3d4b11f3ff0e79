"""What signals do while a model trains: what they did before."""

from __future__ import annotations

import signal
import threading
from typing import Any

import lightning.pytorch as pl


class OwnSignals(pl.Callback):
    """Puts back what SIGTERM does when training starts, where Lightning has put its own beside it.

    Lightning's ends training after the micro-batch, by SystemExit without an error and without a checkpoint, which
    loses the step that `Pause` would have waited for and looks like success to whoever started the process.
    """

    def __init__(self) -> None:
        self.before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Put it back, unless it was a library's in C; signals are the main thread's."""
        if self.before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.before)
