"""Callbacks that act at the end of a training step.

In this order: metric row, validation, exported weights, probes, checkpoint, progress, pause.

Validation and checkpoints are callbacks of ours, not Lightning's loops, so that a checkpoint is always taken after
everything else of its step: a resumed run then repeats nothing and skips nothing.
"""

from __future__ import annotations

import io
import itertools
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from experiments import runs
from experiments.configuration.schema import Config, TrainerConfig
from experiments.costs.model_costs import Utilisation
from experiments.data import Split, TaskSet, eval_windows
from experiments.parallel import checkpoint as parallel_checkpoint
from experiments.parallel import group
from experiments.parallel.strategies import export
from experiments.runs import MetricLog, read_metrics
from experiments.scoring.tasks import score_sequences
from experiments.scoring.text import score_windows
from experiments.system import machine, signals
from experiments.system.processes import MIN_SECONDS, Sink
from experiments.system.signals import Paused
from experiments.training import pl
from experiments.training.lightning_modules import LanguageModelling, SyntheticTask
from zoo.errors import UserError
from zoo.files import fit, write_atomic
from zoo.io import WEIGHTS, read_card
from zoo.model import LanguageModel

# Metric rows of training (means over the logging interval, throughput, memory) and of validation, and what validation
# decides: the best weights, which are exported, and early stopping.


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
    """Return whether something is due that comes every `every` steps, and at the last."""
    return step % every == 0 or step == last


class MetricRows(StepCallback):
    """Writes a row every log_every steps: means over its steps; `grad_norm`, `lr` of the last one; `grad_norm_max`.

    Its running sums are part of the checkpoint, so that a resumed run writes the same rows.
    utilisation gives MFU = FLOPs done / (peak · time), empty where above 1; what it takes to find FLOPs and peak is no
    training time.
    """

    def __init__(self, log: MetricLog, every: int, tokens_per_step: int, utilisation: Utilisation) -> None:
        self.metric_log, self.every = log, every
        self.tokens_per_step, self.utilisation = tokens_per_step, utilisation
        self.sums: dict[str, Tensor] = {}
        self.count = 0
        self.largest_norm: Tensor | None = None  # of the gradient, since the last row
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

    def on_before_optimizer_step(self, trainer: pl.Trainer, task: Any, optimizer: Any) -> None:
        """Read the rate that the step is taken at: after it, the optimiser has that of the next."""
        self.rate = optimizer.param_groups[0]["lr"]

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Add the step's losses to the running sums, and write a row where one is due."""
        losses = dict(task.last_step)
        norm = losses.pop("grad_norm")
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(value)) + value
        self.count += 1
        self.steps += 1
        before = norm if self.largest_norm is None else self.largest_norm.to(norm.device)
        self.largest_norm = torch.maximum(norm, before)  # on the device: nothing waits
        step = trainer.global_step
        if not is_due(step, self.every, trainer.max_steps):
            return
        row = {name: float(value) / self.count for name, value in self.sums.items()}
        row["grad_norm"] = float(norm)  # waits for the GPU, whose work the clock below then includes
        row["grad_norm_max"] = float(self.largest_norm)
        row["lr"] = self.rate
        self.write(trainer, {"split": "train", **row, **self._speed(task)})
        self.sums, self.count, self.steps, self.largest_norm = {}, 0, 0, None

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
        """The running sums, the largest norm, the seconds spent training and all rows so far, for the checkpoint."""
        return {
            "run": self.metric_log.path.parent.name,
            "rows": self.metric_log.text() if group.is_main() else "",
            "sums": self.sums,
            "count": self.count,
            "largest_norm": self.largest_norm,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the sums, the largest norm, the seconds and the rows of a checkpoint."""
        self.sums, self.count, self.seconds = state["sums"], state["count"], state["seconds"]
        self.largest_norm = state.get("largest_norm")  # older checkpoints have none
        if "rows" in state and group.is_main():
            self.metric_log.restore(state["rows"])


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
        """Return whether `patience` validations in a row brought no lower loss."""
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
        """Return the numbers in the row of a validation; "loss", in nats a token, decides what is best."""
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
        self.resumed = 0

    def on_fit_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Export the weights of the checkpoint that training continues from where their files are gone or damaged."""
        best, step = self.validation.best_step, self.resumed
        ended = step and (step == trainer.max_steps or self.validation.out_of_patience)
        folders = [self.run] * (best == step > 0) + [runs.step_folder(self.run, step)] * (
            ended and best < step
        )
        for folder in group.from_main([x for x in folders if (exported_step(x) or 0) < step]):
            export(task.model, folder, step=step, **task.data_card)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Export the weights where this step was asked for, or is the last and not the best."""
        step = trainer.global_step
        last = step == trainer.max_steps or trainer.should_stop
        if not (last or step in self.steps) or (last and step == self.validation.best_step):
            return
        began = time.perf_counter()
        export(task.model, runs.step_folder(self.run, step), step=step, **task.data_card)
        self.metrics.paused += time.perf_counter() - began


class ProbeTraining(StepCallback):
    """Every probe_every steps and at the last, adds rows to RUN/probes/training.parquet, which is rewritten.

    The run itself is not changed; a resumed run drops the rows after its checkpoint. Of several processes the main one
    probes.
    """

    def __init__(self, config: Config, split: Split, metrics: MetricRows, run: Path) -> None:
        from experiments.probing import held_out, probe_run  # late: they load pyarrow

        self.held_out, self.tables = held_out, probe_run
        self.every, self.batch_size = config.trainer.probe_every, config.probe.batch_size
        self.windows = held_out.evenly_spaced_windows(split, config.probe.windows, config.data.seq_len)
        self.metrics, self.run = metrics, run
        self.rows: list[tuple[Any, ...]] = []

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Load the rows up to the checkpoint's step and drop later ones."""
        if not group.is_main():
            return
        name = self.tables.TRAINING
        path = self.tables.file(self.run, name)
        self.tables.remove_partials(self.run)
        if not path.is_file():
            return
        try:
            rows = self.tables.read(self.run, name)
            self.rows = [row for row in rows if row[0] is not None and row[0] <= trainer.global_step]
        except (OSError, ValueError, KeyError) as error:
            print(f"warning: cannot read {path} ({machine.one_line(error)}); starting it again", flush=True)
        self.tables.write(self.run, name, self.rows)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Probe the model where that is due, and rewrite the table."""
        step = trainer.global_step
        if not group.is_main():
            return
        if not (is_due(step, self.every, trainer.max_steps) or trainer.should_stop):
            return
        began = time.perf_counter()
        rows = self.held_out.probe_windows(task.model, *self.windows, self.batch_size)
        self.rows += [(step, *row, "validation") for row in rows]
        self.tables.write(self.run, self.tables.TRAINING, self.rows)
        self.metrics.paused += time.perf_counter() - began


# Checkpoints to resume from: the last two, each written whole or not at all. `Pause` writes one and stops;
# `OwnSignals` keeps Lightning's handler of SIGTERM away, which would end training without it.

KEEP = 2


class Checkpoints(StepCallback):
    """Saves every `every` steps and at the end; keeps the last two, so that one damaged file loses little."""

    def __init__(self, folder: Path, every: int, metrics: MetricRows) -> None:
        self.folder, self.every, self.metrics = folder, every, metrics

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Save a checkpoint where one is due; the time it takes is not training time."""
        if is_due(trainer.global_step, self.every, trainer.max_steps) or trainer.should_stop:
            began = time.perf_counter()
            save_checkpoint(trainer, self.folder)
            self.metrics.paused += time.perf_counter() - began


class AtomicCheckpointIO(pl.plugins.TorchCheckpointIO):
    """Writes checkpoints atomically into their own folder; those of sharded runs (`parallel.checkpoint`) are folders.

    Lightning's own writer goes through the temporary folder, which may be small, and where a killed process would
    leave its file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint to `path`, whole or not at all. All processes of a run have to call it."""
        if parallel_checkpoint.has_shards(checkpoint):
            parallel_checkpoint.save(checkpoint, Path(path))
            return
        if not group.is_main():
            return
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomic(Path(path), content.getbuffer())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: Any = None
    ) -> dict[str, Any]:
        """Read a checkpoint; the task fills in tensors that are held in parts."""
        return parallel_checkpoint.read(Path(path))


def save_checkpoint(trainer: pl.Trainer, folder: Path) -> None:
    """Write a checkpoint of this step by an atomic rename, then remove those no longer kept."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(folder / f"step-{trainer.global_step:08d}.ckpt")
    if group.is_main():
        for old in list_checkpoints(folder)[KEEP:]:
            parallel_checkpoint.remove(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run that is complete and does not keep them."""
    for path in list_checkpoints(folder):
        parallel_checkpoint.remove(path)


def latest_checkpoint(folder: Path, check: Callable[[int, dict[str, Any]], None]) -> Path | None:
    """The newest checkpoint that training can go on from, the main process's choice. All processes have to call it.

    check: gets the step in a checkpoint's name and what it holds; raises ValueError where the run cannot go on from it.
    """
    return group.from_main(_latest(folder, check) if group.is_main() else None)


def _latest(folder: Path, check: Callable[[int, dict[str, Any]], None]) -> Path | None:
    """The newest checkpoint that can be used. Another one is named in a warning and the one before it is tried.

    Raises UserError where there are checkpoints and none can be used: what took hours is not begun again unasked.
    """
    for leftover in folder.glob("*.partial"):  # of a process that was killed while it wrote
        parallel_checkpoint.remove(leftover)
    paths = list_checkpoints(folder)
    for path, following in itertools.zip_longest(paths, paths[1:]):
        try:
            found = parallel_checkpoint.read(path, mmap=True)
            check(runs.step_of(path), found)
        except Exception as error:  # torch raises many kinds for a damaged archive
            reason = str(error) if isinstance(error, ValueError | OSError) else type(error).__name__
            if following is None:
                raise UserError(
                    f"cannot go on from {path} ({machine.one_line(reason)}), and there is no checkpoint before it; "
                    f"restore it, or delete {folder} and the same command trains from the start"
                ) from error
            print(
                f"warning: cannot read {path} ({machine.one_line(reason)}); falling back to the one before",
                flush=True,
            )
            parallel_checkpoint.remove(path.with_suffix(".damaged"))
            path.rename(path.with_suffix(".damaged"))
            continue
        return path
    return None


_PROGRESS = {"ready": int, "completed": int}
_STEPS = "epoch_loop.automatic_optimization.optim_progress"
_CHECKPOINT = {
    "pytorch-lightning_version": str,
    "state_dict": {str: object},
    "optimizer_states": [{"state": dict, "param_groups": [{"params": [int]}]}],
    "lr_schedulers": [{"last_epoch": int}],
    "loops": {
        "fit_loop": {
            "epoch_loop.batch_progress": {"total": _PROGRESS, "current": _PROGRESS},
            _STEPS: {"optimizer": {"step": {"total": _PROGRESS}}},
        }
    },
}
_METRIC_ROWS = {"sums": {str: Tensor}, "count": int, "seconds": float, "run?": str, "rows?": str}
_VALIDATION = {"best": object, "best_step": int, "worse": int}


def check_checkpoint(
    step: int, found: Any, task: LanguageModelling, rows: MetricRows, validation: Validation
) -> None:
    """Raise ValueError unless a run's training can go on, as if undisturbed, from a checkpoint of this step.

    It is whole, of this run and this step, and the best weights before it are there.
    """
    run, trainer = rows.metric_log.path.parent, task.config.trainer
    states = {rows.state_key: _METRIC_ROWS, validation.state_key: _VALIDATION}
    fit(found, {**_CHECKPOINT, "callbacks": states})
    loops, state = found["loops"]["fit_loop"], found["callbacks"][rows.state_key]
    begun = loops["epoch_loop.batch_progress"]["total"]["ready"]
    steps = {
        loops[_STEPS]["optimizer"]["step"]["total"]["completed"],
        begun // trainer.accumulate,
        sum(schedule["last_epoch"] for schedule in found["lr_schedulers"]),  # there is one
    }
    if steps != {step}:
        raise ValueError(f"it is of step {', '.join(map(str, sorted(steps)))}, not {step}")
    if state.get("run", run.name) != run.name:
        raise ValueError(f"it is of the run {state['run']}")
    if "rows" not in state and (gap := _missing_row(rows.metric_log.path, step, trainer)):
        raise ValueError(
            f"{rows.metric_log.path.name} has no {gap}, and this checkpoint of an earlier version none"
        )
    shapes = {
        name: list(x["shape"] if isinstance(x, dict) else x.shape)  # of a sharded one, its mark
        for name, x in found["state_dict"].items()
        if name.startswith("model.")
    }
    if shapes != {name: list(x.shape) for name, x in task.state_dict().items()}:
        raise ValueError("its weights are of another model")
    optimizer = task.configure_optimizers()["optimizer"]
    groups = [len(one["params"]) for one in optimizer.param_groups]
    if [[len(one["params"]) for one in x["param_groups"]] for x in found["optimizer_states"]] != [groups]:
        raise ValueError("its optimizer is of another model")
    best = found["callbacks"][validation.state_key]["best_step"]
    exported = exported_step(run) or 0
    if best > step or (0 < best < step and exported != best and exported <= step):
        raise ValueError(f"the best weights before it, of step {best}, are not in {run} any more")


def _missing_row(path: Path, step: int, trainer: TrainerConfig) -> str | None:
    """A row before a step that a metrics file should have and has not; None where none is missing.

    Rows of training are as far apart as the first is from the start; trainer.log_every may have been another one.
    """
    there = {(row["split"], int(row["step"])) for row in read_metrics(path)}
    every = min((s for split, s in there if split == "train"), default=trainer.log_every)
    for split, apart in (("train", max(1, every)), ("validation", trainer.val_every)):
        for due in range(apart, step + 1, apart):
            if (split, due) not in there:
                return f"row of {split} at step {due}"
    return None


def exported_step(folder: Path) -> int | None:
    """The step of the weights exported to a folder; None where weights or card are gone or damaged."""
    try:
        with safe_open(folder / WEIGHTS, "pt"):
            return read_card(folder).get("step")
    except (OSError, SafetensorError, UserError):
        return None


class Pause(StepCallback):
    """Writes a checkpoint and raises Paused after `minutes` of this attempt, at a step, or where told to make room.

    None: no such limit.
    """

    def __init__(self, minutes: float | None, step: int | None, folder: Path) -> None:
        self.deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.step, self.folder = step, folder

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Save a checkpoint and raise Paused where it is time, unless this was the last step."""
        step, time_is_up = trainer.global_step, self._time_is_up()
        planned, told = self.step is not None and step >= self.step, _received_by_any()
        if not (time_is_up or planned or told) or step >= trainer.max_steps:
            return
        save_checkpoint(trainer, self.folder)
        at = f"at step {step} of {trainer.max_steps}; the same command resumes it"
        if told:
            raise Paused(f"stopped by {told.name} {at}")
        raise Paused(f"time is up {at}" if time_is_up else f"paused {at} without trainer.pause_at")

    def _time_is_up(self) -> bool:
        """By the main process's clock."""
        return self.deadline < math.inf and group.from_main(time.monotonic() >= self.deadline)


def _received_by_any() -> signal.Signals | None:
    """The signal that told a process of this run to make room; others may not have heard yet, and all stop together."""
    return next(filter(None, group.from_all(signals.received())), None)


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


__all__ = [
    "AtomicCheckpointIO",
    "Checkpoints",
    "ExportWeights",
    "MetricRows",
    "OwnSignals",
    "Pause",
    "ProbeTraining",
    "ReportProgress",
    "TaskValidation",
    "Validation",
    "latest_checkpoint",
    "remove_checkpoints",
]
