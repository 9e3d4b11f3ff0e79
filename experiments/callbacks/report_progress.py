"""Telling how far a run has come."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl

from experiments.callbacks.step import StepCallback
from experiments.progress import MIN_SECONDS, Sink
from experiments.task import LanguageModelling


class ReportProgress(StepCallback):
    """Tells a sink the step and the loss, a few times a second (reading the loss waits for a GPU)."""

    def __init__(self, sink: Sink) -> None:
        self.sink, self.last = sink, 0.0

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Tell the step that training goes on from."""
        self.sink("train", trainer.global_step, trainer.max_steps)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Tell the step and the loss, if the last time was long enough ago."""
        now = time.monotonic()
        if now - self.last < MIN_SECONDS and trainer.global_step < trainer.max_steps:
            return
        self.last = now
        self.sink(
            "train", trainer.global_step, trainer.max_steps, f"loss {float(task.last_step['loss']):.3f}"
        )
