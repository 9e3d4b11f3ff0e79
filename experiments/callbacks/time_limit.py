"""How far a run has come, and pausing it when its time is up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from experiments.callbacks.checkpoints import save
from experiments.callbacks.step import StepCallback
from experiments.progress import MIN_SECONDS, Sink
from experiments.task import LanguageModelling


class Progress(StepCallback):
    """Tells a sink the step and the loss, a few times a second (reading the loss waits for a GPU)."""

    def __init__(self, sink: Sink) -> None:
        self.sink, self.last = sink, 0.0

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        self.sink("train", trainer.global_step, trainer.max_steps)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        now = time.monotonic()
        if now - self.last < MIN_SECONDS and trainer.global_step < trainer.max_steps:
            return
        self.last = now
        self.sink("train", trainer.global_step, trainer.max_steps, f"loss {float(task.seen['loss']):.3f}")


class Paused(RuntimeError):
    """The time a run may take is up; its checkpoint is written and the same command goes on."""


class TimeLimit(StepCallback):
    """Writes a checkpoint and raises Paused after so many minutes of this attempt."""

    def __init__(self, minutes: float, folder: Path) -> None:
        self.deadline, self.folder = time.monotonic() + 60 * minutes, folder

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        if time.monotonic() < self.deadline or trainer.global_step >= trainer.max_steps:
            return
        save(trainer, self.folder)
        raise Paused(
            f"time is up at step {trainer.global_step} of {trainer.max_steps}; the same command goes on"
        )
