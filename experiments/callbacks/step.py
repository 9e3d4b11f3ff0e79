"""A callback that acts once an optimiser step, whatever the accumulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl

from experiments.task import LanguageModelling


class StepCallback(pl.Callback, ABC):
    """Calls `after_step` when a micro-batch completed an optimiser step."""

    @abstractmethod
    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Act after an optimiser step; `trainer.global_step` of them are done."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Call `after_step` if this micro-batch was the last of its optimiser step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.after_step(trainer, task)


def due(step: int, every: int, last: int) -> bool:
    """Whether something is due that comes every `every` steps, and at the last."""
    return step % every == 0 or step == last
