"""Pausing a run when its time is up."""

from __future__ import annotations

import time
from pathlib import Path

import lightning.pytorch as pl

from experiments.callbacks.checkpoints import save
from experiments.callbacks.step import StepCallback
from experiments.task import LanguageModelling


class Paused(RuntimeError):
    """The time a run may take is up; its checkpoint is written and the same command goes on."""


class TimeLimit(StepCallback):
    """Writes a checkpoint and raises Paused after so many minutes of this attempt."""

    def __init__(self, minutes: float, folder: Path) -> None:
        self.deadline, self.folder = time.monotonic() + 60 * minutes, folder

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Save a checkpoint and raise Paused when the time is up, unless this was the last step."""
        if time.monotonic() < self.deadline or trainer.global_step >= trainer.max_steps:
            return
        save(trainer, self.folder)
        raise Paused(
            f"time is up at step {trainer.global_step} of {trainer.max_steps}; the same command goes on"
        )
