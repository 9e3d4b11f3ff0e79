"""Checkpoints that a run can be resumed from: the last two, each written whole or not at all; pausing with one.

`OwnSignals` keeps Lightning's handler of SIGTERM away, which would end training without the checkpoint that `Pause`
writes.
"""

from __future__ import annotations

import io
import math
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from experiments.parallel import checkpoint as parallel_checkpoint
from experiments.parallel import group
from experiments.system import preemption
from experiments.system.preemption import Paused
from experiments.training.callbacks.metrics import MetricRows, StepCallback, is_due
from experiments.training.lightning_modules import LanguageModelling
from zoo.files import write_atomic

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


class AtomicCheckpointIO(TorchCheckpointIO):
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


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that can be read, the main process's choice. All processes of a run have to call it."""
    return group.from_main(_latest(folder) if group.is_main() else None)


def _latest(folder: Path) -> Path | None:
    """The newest checkpoint that can be read. A damaged one is named in a warning and the one before it is tried."""
    for leftover in folder.glob("*.partial"):  # of a process that was killed while it wrote
        parallel_checkpoint.remove(leftover)
    for path in list_checkpoints(folder):
        try:
            parallel_checkpoint.read(path, mmap=True)
        except Exception as error:  # torch raises many kinds for a damaged archive
            print(
                f"warning: cannot read {path} ({type(error).__name__}); falling back to the one before",
                flush=True,
            )
            parallel_checkpoint.remove(path.with_suffix(".damaged"))
            path.rename(path.with_suffix(".damaged"))
            continue
        return path
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
        at = f"at step {step} of {trainer.max_steps}; the same command goes on"
        if told:
            raise Paused(f"told to make room ({told.name}) {at}")
        raise Paused(f"time is up {at}" if time_is_up else f"paused {at} without trainer.pause_at")

    def _time_is_up(self) -> bool:
        """By the main process's clock."""
        return self.deadline < math.inf and group.from_main(time.monotonic() >= self.deadline)


def _received_by_any() -> signal.Signals | None:
    """The signal that told a process of this run to make room; others may not have heard yet, and all stop together."""
    return next(filter(None, group.from_all(preemption.received())), None)


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
