"""Weights beside the best: of the last step and of steps that were asked for, so that runs can be looked at alike."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import lightning.pytorch as pl

from experiments import saved_weights
from experiments.callbacks.metrics import MetricRows
from experiments.callbacks.step import StepCallback
from experiments.callbacks.validation import Validation
from experiments.task import LanguageModelling
from zoo.io import export


class ExportWeights(StepCallback):
    """Exports the weights of these steps and of the last to RUN/weights/step-N; the last only where it is not the best.

    Comes after Validation, which decides what is best and whether training stops early.
    """

    def __init__(
        self, steps: Collection[int], validation: Validation, metrics: MetricRows, run: Path
    ) -> None:
        self.steps, self.validation, self.metrics, self.run = set(steps), validation, metrics, run

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Export the weights where this step was asked for, or is the last and not the best."""
        step = trainer.global_step
        last = step == trainer.max_steps or trainer.should_stop
        if not (last or step in self.steps) or (last and step == self.validation.best_step):
            return
        began = time.perf_counter()
        export(task.model, saved_weights.step_folder(self.run, step), tokenizer=task.tokenizer, step=step)
        self.metrics.paused += time.perf_counter() - began
