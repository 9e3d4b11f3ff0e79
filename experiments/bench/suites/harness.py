"""suite=harness: the overhead of the harness, Lightning with rows and progress bar against a bare PyTorch loop.

Pairs of equally many steps on the same model, batches and threads, in alternating order. The ratio of a pair is harness
time over loop time; reported is the median with a 95 % bootstrap interval.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments import data
from experiments.bench import result_table, timing
from experiments.bench.model_steps import update
from experiments.configuration.schema import Config
from experiments.costs.model_costs import Utilisation
from experiments.optimisation import lr_factor, make_optimizer
from experiments.parallel.group import pick_device, pick_precision
from experiments.runs import MetricLog
from experiments.system.processes import Bar
from experiments.training import callbacks, pl
from experiments.training.lightning_modules import LanguageModelling
from experiments.training.train import make_batches, make_model, make_trainer, silence_lightning
from zoo.interfaces import set_step

STEP_MS = 120.0


def run(config: Config) -> list[dict[str, Any]]:
    """Time bench.pairs pairs of bench.steps steps; prints median ratio and interval, returns two rows."""
    silence_lightning()
    torch.set_num_threads(config.trainer.threads)
    device = pick_device(config.device)
    trainer_config = dataclasses.replace(config.trainer, max_steps=config.bench.steps)
    config = dataclasses.replace(config, trainer=trainer_config)
    corpus = data.prepare(config.data)
    config = _long_steps(config, corpus, device)
    bare, harness = [], []
    for pair in tqdm(range(config.bench.pairs), desc="harness", unit="pair"):
        order = (_bare, bare), (_harness, harness)
        for measure, out in order if pair % 2 == 0 else reversed(order):
            out.append(1e3 * measure(config, corpus, device) / config.bench.steps)
    _report(config, bare, harness)
    return [_row(config, device, "bare loop", bare, bare), _row(config, device, "lightning", harness, bare)]


def _long_steps(config: Config, corpus: data.Corpus, device: torch.device) -> Config:
    """The configuration with the batch doubled until a step takes STEP_MS: overhead is a matter of real steps."""
    probe = dataclasses.replace(config, bench=dataclasses.replace(config.bench, steps=3))
    while 1e3 * _bare(probe, corpus, device) / 3 < STEP_MS and probe.data.batch_size < 4096:
        bigger = dataclasses.replace(probe.data, batch_size=2 * probe.data.batch_size)
        probe = dataclasses.replace(probe, data=bigger)
    return dataclasses.replace(config, data=probe.data)


def _bare(config: Config, corpus: data.Corpus, device: torch.device) -> float:
    """Seconds of a loop a person would write: batch, loss, backward, clip, step."""
    task = _task(config, corpus)
    model = task.model.to(device)
    optimizer = make_optimizer(model, config.optim)
    began = time.perf_counter()
    for step in range(config.bench.steps):
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lr_factor(step, config.optim, config.bench.steps)
        batch = {k: v.to(device) for k, v in task.batches.batch(step).items()}
        loss, aux, _ = task.losses(batch)
        update(optimizer, loss + model.aux_loss(aux), config.optim.clip)
        set_step(model, step + 1, config.bench.steps)
    float(loss.detach())  # waits for a GPU
    return time.perf_counter() - began


def _harness(config: Config, corpus: data.Corpus, device: torch.device) -> float:
    """Seconds of the same steps in the harness, rows and progress bar on; without validation and checkpoints."""
    task, clock = _task(config, corpus), _Clock()
    with tempfile.TemporaryDirectory() as folder:
        log = MetricLog(Path(folder) / "metrics.csv", [f"aux:{name}" for name in task.model.aux_weights])
        utilisation = Utilisation(lambda: 1.0, lambda: 1.0)
        metrics = callbacks.MetricRows(log, config.trainer.log_every, config.tokens_per_step, utilisation)
        bar = Bar("harness", config.trainer.progress)
        trainer = make_trainer(config, device, [clock, metrics, callbacks.ReportProgress(bar)], Path(folder))
        trainer.fit(task)
        bar.close()
    return clock.seconds


class _Clock(pl.Callback):
    """Time between the start and the end of training, without the trainer's set-up."""

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, task: Any) -> None:
        self.seconds = time.perf_counter() - self.began


def _task(config: Config, corpus: data.Corpus) -> LanguageModelling:
    return LanguageModelling(make_model(config, corpus), config, make_batches(config, corpus), corpus.card)


def _report(config: Config, bare: list[float], harness: list[float]) -> None:
    ratios = [h / b for h, b in zip(harness, bare, strict=True)]
    low, high = timing.bootstrap_interval(ratios)
    print(
        f"harness overhead: median {statistics.median(ratios):.4f}x, 95 % interval {low:.4f} to {high:.4f} "
        f"({len(ratios)} pairs of {config.bench.steps} steps, {statistics.median(bare):.1f} ms a step bare, "
        f"batch {config.data.batch_size} x {config.data.seq_len}, {config.trainer.threads} thread(s))"
    )


def _row(
    config: Config, device: torch.device, name: str, times: list[float], peer: list[float]
) -> dict[str, Any]:
    return {
        "suite": "harness",
        "model": name,
        "mode": "training step",
        "precision": pick_precision(config.trainer.precision, device),
        "tokens": config.tokens_per_step,
        "batch": config.data.batch_size,
        "milliseconds_median": statistics.median(times),
        "milliseconds_low": min(times),
        "milliseconds_high": max(times),
        "ratio": statistics.median(p / t for p, t in zip(peer, times, strict=True)),
        **result_table.machine_facts(device),
    }
