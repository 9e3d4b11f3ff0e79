"""suite=harness: what everything around a model costs, in training steps and from command to result.

Steps: a bare PyTorch loop, Lightning alone, and the harness with its rows and progress bar; equally many steps on the
same model, batches and threads, in alternating order. The ratio of a pair is the loop's time over the other's; printed
is the median of its inverse with a 95 % bootstrap interval.

Commands: start, planning, one step and report as processes of their own, in turns with `import torch`, by processor
time, which other work on the machine changes least, and by wall time.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments import data
from experiments.bench import result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.model_steps import update
from experiments.configuration.schema import Config
from experiments.costs.model_costs import Utilisation
from experiments.data.cache import cache_root
from experiments.optimisation import lr_factor, make_optimizer
from experiments.parallel.group import pick_device, pick_precision
from experiments.runs import MetricLog, RunFailed
from experiments.system.paths import ROOT, program
from experiments.system.processes import Bar
from experiments.training import callbacks, pl
from experiments.training.lightning_modules import LanguageModelling
from experiments.training.train import make_batches, make_model, make_trainer, silence_lightning
from zoo.interfaces import set_step

STEP_MS = 120.0
PUBLISHED = ROOT / "results" / "published" / "harness.csv"
IMPORT = "import torch"
COMMANDS = {
    "help": "--help",
    "configuration": "--cfg job",
    "refused key": "model.dept=2",
    "list": "job=list",
    "cost": "job=cost model=kda",
    "one step": "size=smoke trainer.max_steps=1 name=one results={}",
    "plan of 1,000 cells": "--multirun dry=true size=smoke seed=range(0,1000) name=plan results={}",
    "report": "job=report runs={}/one",
}
"""Measured from command to exit, with a folder of its own each time; `report` is of the run of `one step`."""


def run(config: Config) -> list[dict[str, Any]]:
    """Time bench.pairs pairs of bench.steps steps, and every command bench.repeats times; bench.cases chooses."""
    chosen = matching_names(config.bench.cases, ["steps", *COMMANDS])
    rows = _steps(config) if "steps" in chosen else []
    return rows + (_commands(config, chosen) if chosen != ["steps"] else [])


def _steps(config: Config) -> list[dict[str, Any]]:
    silence_lightning()
    torch.set_num_threads(config.trainer.threads)
    device = pick_device(config.device)
    trainer_config = dataclasses.replace(config.trainer, max_steps=config.bench.steps)
    config = dataclasses.replace(config, trainer=trainer_config)
    corpus = data.prepare(config.data)
    config = _long_steps(config, corpus, device)
    measures = {"bare loop": _bare, "lightning alone": _lightning, "harness": _harness}
    times: dict[str, list[float]] = {name: [] for name in measures}
    for turn in tqdm(range(config.bench.pairs), desc="harness", unit="pair"):
        for name in measures if turn % 2 == 0 else reversed(measures):
            times[name].append(1e3 * measures[name](config, corpus, device) / config.bench.steps)
    for name in ("lightning alone", "harness"):
        _report(config, name, times["bare loop"], times[name])
    shape = {"tokens": config.tokens_per_step, "batch": config.data.batch_size}
    more = {"precision": pick_precision(config.trainer.precision, device), "peer": "bare loop", **shape}
    return [_row(name, "training step", x, times["bare loop"], device, **more) for name, x in times.items()]


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


class _Plain(pl.LightningModule):
    """The loss and the optimiser, as one writes them for Lightning first."""

    def __init__(self, task: LanguageModelling) -> None:
        super().__init__()
        self.task = task

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss, aux, _ = self.task.losses(batch)
        return loss + self.task.model.aux_loss(aux)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.task.model, self.task.config.optim)


def _lightning(config: Config, corpus: data.Corpus, device: torch.device) -> float:
    """Seconds of the same steps by Lightning with nothing of ours around them."""
    task, clock, steps = _task(config, corpus), _Clock(), config.bench.steps
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed" if pick_precision(config.trainer.precision, device) == "bf16" else "32-true",
        callbacks=[clock],
        gradient_clip_val=config.optim.clip,
        enable_model_summary=False,
        **quiet,
    )
    # Made as they are asked for, inside the time, as in the other loops.
    trainer.fit(_Plain(task), (task.batches.batch(step) for step in range(steps)))
    return clock.seconds


class _Clock(pl.Callback):
    """Time between the start and the end of training, without the trainer's set-up."""

    def on_train_start(self, trainer: pl.Trainer, task: Any) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, task: Any) -> None:
        self.seconds = time.perf_counter() - self.began


def _task(config: Config, corpus: data.Corpus) -> LanguageModelling:
    return LanguageModelling(make_model(config, corpus), config, make_batches(config, corpus), corpus.card)


def _report(config: Config, name: str, bare: list[float], times: list[float]) -> None:
    ratios = [x / b for x, b in zip(times, bare, strict=True)]
    low, high = timing.bootstrap_interval(ratios)
    print(
        f"{name}: median {statistics.median(ratios):.4f}x the bare loop, 95 % interval {low:.4f} to {high:.4f} "
        f"({len(ratios)} pairs of {config.bench.steps} steps, {statistics.median(bare):.1f} ms a step bare, "
        f"batch {config.data.batch_size} x {config.data.seq_len}, {config.trainer.threads} thread(s))"
    )


def _commands(config: Config, chosen: list[str]) -> list[dict[str, Any]]:
    """Processor and wall time of the chosen commands, in turns with `import torch`; the first turn is not counted."""
    names = [name for name in COMMANDS if name in chosen or (name == "one step" and "report" in chosen)]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (IMPORT, *names)}
    for turn in tqdm(range(config.bench.repeats + 1), desc="commands", unit="turn"):
        with tempfile.TemporaryDirectory() as folder:
            for name in times:
                words = COMMANDS.get(name, "").replace("{}", folder).split()
                command = [*program(), *words] if words else [sys.executable, "-c", IMPORT]
                taken = _processor_and_wall_ms(command, 2 if name == "refused key" else 0, config)
                if turn:
                    times[name].append(taken)
    rows, published, device = [], _published(), torch.device("cpu")
    for name, taken in times.items():
        for i, mode in enumerate(("processor time", "wall time")):
            ours, peer = ([pair[i] for pair in pairs] for pairs in (taken, times[IMPORT]))
            rows.append(_row(name, mode, ours, peer, device, peer=IMPORT))
        print(_line(*rows[-2:], published))
    return rows


def _processor_and_wall_ms(command: list[str], status: int, config: Config) -> tuple[float, float]:
    """Milliseconds of a process and those it waited for. Raises RunFailed where it does not end with `status`."""
    environment = {**os.environ, "ARCHZOO_CACHE": str(cache_root(config.data))}
    with tempfile.TemporaryFile() as words:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=words)
        _, ended, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(ended)
        words.seek(0)
        last = words.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    if process.returncode != status:
        raise RunFailed(f"{shlex.join(command)} ended with {process.returncode}: {last}")
    return 1e3 * (usage.ru_utime + usage.ru_stime), 1e3 * wall


def _line(processor: dict[str, Any], wall: dict[str, Any], published: dict[str, float]) -> str:
    """A command's times, and its ratio in the published table, where that has it."""
    ratio = 1 / processor["ratio"]
    name = processor["model"]
    before = f"; published: {1 / published[name]:.2f}" if name in published else ""
    return (
        f"{name}: {processor['milliseconds_median'] / 1e3:.2f} s of processor time, {ratio:.2f} of {IMPORT}{before}; "
        f"{wall['milliseconds_median'] / 1e3:.2f} s in all"
    )


def _published() -> dict[str, float]:
    """The ratios of processor time in the table that the project publishes; none where it is not there."""
    if not PUBLISHED.is_file():
        return {}
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return {
            row["model"]: float(row["ratio"])
            for row in csv.DictReader(file)
            if row["mode"] == "processor time"
        }


def _row(
    name: str, mode: str, times: list[float], other: list[float], device: torch.device, **more: Any
) -> dict[str, Any]:
    return {
        "suite": "harness",
        "model": name,
        "mode": mode,
        "milliseconds_median": statistics.median(times),
        "milliseconds_low": min(times),
        "milliseconds_high": max(times),
        "ratio": statistics.median(x / t for x, t in zip(other, times, strict=True)),
        **result_table.machine_facts(device),
        **more,
    }
