"""job=bench suite=NAME: run a suite of measurements, print it and write its table."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from experiments.bench import tables
from experiments.schema import Config
from zoo.errors import UserError, unknown

SUITES = ("attention", "cpu", "harness", "latency")


def run(config: Config) -> None:
    """Measure, and write <bench.out or results/bench>/<suite>.csv."""
    if config.suite not in SUITES:
        raise unknown("suite", config.suite, SUITES)
    b = config.bench
    if min(b.repeats, b.pairs, b.steps, *(b.lengths or [1])) < 1 or b.lengths == []:
        raise UserError(
            "bench.repeats, bench.pairs, bench.steps and every length in bench.lengths must be at least 1"
        )
    torch.set_num_threads(config.trainer.threads)
    rows = importlib.import_module(f"experiments.bench.{config.suite}").run(config)
    tables.write(rows, Path(b.out or f"{config.results}/bench") / f"{config.suite}.csv")
