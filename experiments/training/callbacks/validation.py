"""Validation while training: rows, exported weights (best, last, asked for), early stopping."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from experiments.configuration.schema import Config
from experiments.data import Split, TaskSet, eval_windows
from experiments.parallel import group
from experiments.parallel.sharded import export
from experiments.runs import saved_weights
from experiments.scoring.tasks import score_sequences
from experiments.scoring.text import score_windows
from experiments.training.callbacks.metrics import MetricRows, StepCallback, is_due
from experiments.training.lightning_modules import LanguageModelling, SyntheticTask
from zoo.model import LanguageModel


class Validation(StepCallback):
    """Every val_every steps, scores the first val_tokens tokens of the validation split.

    The weights with the lowest loss so far are exported to the run folder; after `patience` validations without a
    lower one, training stops.
    """

    def __init__(
        self, config: Config, split: Split | None, metrics: MetricRows, folder: Path, bos: int | None
    ) -> None:
        self.config, self.split, self.metrics, self.folder, self.bos = config, split, metrics, folder, bos
        self.best, self.best_step, self.worse = math.inf, 0, 0

    @property
    def out_of_patience(self) -> bool:
        """Whether `patience` validations in a row brought no lower loss."""
        patience = self.config.trainer.patience
        return patience is not None and self.worse >= patience

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Stop at once where training had stopped early at this checkpoint."""
        trainer.should_stop = self.out_of_patience

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Validate where that is due; export better weights, and stop where patience is used up."""
        if not is_due(trainer.global_step, self.config.trainer.val_every, trainer.max_steps):
            return
        began = time.perf_counter()
        # All processes score: sharded models need them to, and the others would only wait.
        scores = group.from_main(self.scores(task.model, trainer))
        loss = scores["loss"]
        if loss < self.best:
            self.best, self.best_step, self.worse = loss, trainer.global_step, 0
            export(task.model, self.folder, step=trainer.global_step, **task.data_card)
        else:
            self.worse += 1
        self.metrics.write(trainer, {"split": "validation", **scores, "seconds": ""})
        self.metrics.paused += time.perf_counter() - began
        trainer.should_stop = trainer.should_stop or self.out_of_patience

    def scores(self, model: LanguageModel, trainer: pl.Trainer) -> dict[str, float]:
        """What the row of a validation shows; "loss", in nats a token, decides what is best."""
        windows = eval_windows(self.split, model.seq_len, model.seq_len)
        nats, tokens = score_windows(
            model,
            itertools.islice(windows, self.windows(model)),
            batch_size=self.config.evaluate.batch_size,
            document_bos=self.bos,
            precision=scoring_precision(trainer),
            shards=group.sequence(),
        )
        loss = nats / tokens
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}

    def windows(self, model: LanguageModel) -> int | None:
        """The number of windows of the trained length that trainer.val_tokens fills, at least one (None: all)."""
        limit = self.config.trainer.val_tokens
        return None if limit is None else max(1, limit // model.seq_len)

    def state_dict(self) -> dict[str, Any]:
        """The lowest loss, its step, and how many validations have been worse since."""
        return {"best": self.best, "best_step": self.best_step, "worse": self.worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the lowest loss and the patience used up from a checkpoint."""
        self.best, self.best_step, self.worse = state["best"], state["best_step"], state["worse"]


class TaskValidation(Validation):
    """The same of a synthetic task, on the first of its validation sequences."""

    def __init__(self, config: Config, task_set: TaskSet, metrics: MetricRows, folder: Path) -> None:
        super().__init__(config, None, metrics, folder, None)
        self.task_set = task_set

    def scores(self, model: LanguageModel, trainer: pl.Trainer) -> dict[str, float]:
        """Loss in nats an answer, and the shares of answers and of whole sequences that are right."""
        score = score_sequences(
            model,
            self.task_set.held_out("validation").first(self.windows(model)),
            chance=self.task_set.task.chance,
            batch_size=self.config.evaluate.batch_size,
            precision=scoring_precision(trainer),
        ).metrics()
        return {name: score[name] for name in ("loss", *SyntheticTask.measures)}


def scoring_precision(trainer: pl.Trainer) -> str:
    """The precision to score in: that of the training, bf16 or fp32."""
    return "bf16" if "bf16" in str(trainer.precision) else "fp32"


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
        export(task.model, saved_weights.step_folder(self.run, step), step=step, **task.data_card)
        self.metrics.paused += time.perf_counter() - began
