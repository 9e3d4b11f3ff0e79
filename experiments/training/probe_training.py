"""Probing while training: rows of `zoo.probes` over held-out windows, every trainer.probe_every steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from experiments.configuration.schema import Config
from experiments.data import Split
from experiments.parallel import group
from experiments.probing import probe_run
from experiments.probing.held_out import evenly_spaced_windows, probe_windows
from experiments.system.machine import one_line
from experiments.training import pl
from experiments.training.callbacks import MetricRows, StepCallback, is_due
from experiments.training.lightning_modules import LanguageModelling


class ProbeTraining(StepCallback):
    """Every probe_every steps and at the last, adds rows to RUN/probes/training.parquet, which is rewritten.

    The run itself is not changed; a resumed run drops the rows after its checkpoint. Of several processes the main one
    probes.
    """

    def __init__(self, config: Config, split: Split, metrics: MetricRows, run: Path) -> None:
        self.every, self.batch_size = config.trainer.probe_every, config.probe.batch_size
        self.windows = evenly_spaced_windows(split, config.probe.windows, config.data.seq_len)
        self.metrics, self.run = metrics, run
        self.rows: list[tuple[Any, ...]] = []

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        """Load the rows up to the checkpoint's step and drop later ones."""
        if not group.is_main():
            return
        path = probe_run.file(self.run, probe_run.TRAINING)
        probe_run.remove_partials(self.run)
        if not path.is_file():
            return
        try:
            self.rows = [
                row for row in probe_run.read(self.run, probe_run.TRAINING) if row[0] <= trainer.global_step
            ]
        except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
            print(f"warning: cannot read {path} ({one_line(error)}); starting it again", flush=True)
        probe_run.write(self.run, probe_run.TRAINING, self.rows)

    def after_step(self, trainer: pl.Trainer, task: LanguageModelling) -> None:
        """Probe the model where that is due, and rewrite the table."""
        step = trainer.global_step
        if not group.is_main():
            return
        if not (is_due(step, self.every, trainer.max_steps) or trainer.should_stop):
            return
        began = time.perf_counter()
        rows = probe_windows(task.model, *self.windows, self.batch_size)
        self.rows += [(step, *row, "validation") for row in rows]
        probe_run.write(self.run, probe_run.TRAINING, self.rows)
        self.metrics.paused += time.perf_counter() - began
