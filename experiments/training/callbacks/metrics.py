"""Recording training steps: metric rows (means over the logging interval, throughput, memory) and progress."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from experiments.costs.model_costs import Utilisation
from experiments.parallel import group
from experiments.runs.metric_log import MetricLog
from experiments.system import machine
from experiments.system.progress import MIN_SECONDS, Sink
from experiments.training.lightning_modules import LanguageModelling


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


def is_due(step: int, every: int, last: int) -> bool:
    """Whether something is due that comes every `every` steps, and at the last."""
    return step % every == 0 or step == last


class MetricRows(StepCallback):
    """Writes a row every log_every steps.

    Its running sums are part of the checkpoint, so that a resumed run writes the same rows.
    utilisation gives MFU = FLOPs done / (peak · time), empty where above 1; what it takes to find FLOPs and peak is no
    training time.
    """

    def __init__(self, log: MetricLog, every: int, tokens_per_step: int, utilisation: Utilisation) -> None:
        self.metric_log, self.every = log, every
        self.tokens_per_step, self.utilisation = tokens_per_step, utilisation
        self.sums: dict[str, Tensor] = {}
        self.count = 0
        self.seconds = 0.0  # spent training so far, earlier attempts included
        self.paused = 0.0  # spent since the last row on validation, checkpoints and costs
        self.since = 0.0
        self.steps = 0

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Cut the log back to the checkpoint that training continues from, and start the clock."""
        if group.is_main():
            self.metric_log.cut(trainer.global_step)
        self.since = time.perf_counter()
        self.steps = 0

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Add the micro-batches' losses to the running sums, and write a row where one is due."""
        for losses in task.micro_batches:
            for name, value in losses.items():
                self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value
            self.count += 1
        self.steps += 1
        step = trainer.global_step
        if not is_due(step, self.every, trainer.max_steps):
            return
        row = {name: float(value) / self.count for name, value in self.sums.items()}
        row["grad_norm"] = float(
            task.last_step["grad_norm"]
        )  # waits for the GPU, whose work the clock below then includes
        row["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
        self.write(trainer, {"split": "train", **row, **self._speed(task)})
        self.sums, self.count, self.steps = {}, 0, 0

    def write(self, trainer: pl.Trainer, row: dict[str, Any]) -> None:
        """Append a row of this step, and hand it to the other loggers; the main process does."""
        if not group.is_main():
            return
        step = trainer.global_step
        row = {"step": step, "tokens": step * self.tokens_per_step, **row}
        self.metric_log.append(row)
        numbers = {f"{row['split']}/{k}": v for k, v in row.items() if isinstance(v, float)}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step)

    def _speed(self, task: LanguageModelling) -> dict[str, float | int | None]:
        now = time.perf_counter()
        elapsed = max(now - self.since - self.paused, 1e-9)
        self.seconds += elapsed
        rate = self.steps * self.tokens_per_step / elapsed
        before = self.utilisation.seconds
        mfu = self.utilisation(rate)
        self.since, self.paused = now, self.utilisation.seconds - before
        return {
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(rate, 1),
            "mfu": None if mfu is None else round(mfu, 5),
            "peak_memory_bytes": machine.peak_memory(task.device),
        }

    def state_dict(self) -> dict[str, Any]:
        """The running sums and the seconds spent training, for the checkpoint."""
        return {"sums": self.sums, "count": self.count, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the sums and seconds of a checkpoint."""
        self.sums, self.count, self.seconds = state["sums"], state["count"], state["seconds"]


class ReportProgress(StepCallback):
    """Reports step and loss to a sink, a few times a second (reading the loss waits for a GPU)."""

    def __init__(self, sink: Sink) -> None:
        self.sink, self.last = sink, 0.0

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Report the step that training continues from."""
        self.sink("train", trainer.global_step, trainer.max_steps)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Report step and loss, if the last report was long enough ago."""
        now = time.monotonic()
        if now - self.last < MIN_SECONDS and trainer.global_step < trainer.max_steps:
            return
        self.last = now
        self.sink(
            "train", trainer.global_step, trainer.max_steps, f"loss {float(task.last_step['loss']):.3f}"
        )
