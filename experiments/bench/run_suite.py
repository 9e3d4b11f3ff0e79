"""Running a suite of measurements and writing its table."""

from __future__ import annotations

import importlib
import pkgutil

import torch

from experiments.bench import result_table, suites
from experiments.configuration.schema import Config
from experiments.runs import RunFailed

SUITES = sorted(module.name for module in pkgutil.iter_modules(suites.__path__))
"""A suite is a file or folder in experiments/bench/suites/ with `run(config)`, which returns the rows of its table."""


def run_suite(config: Config) -> None:
    """Measure config.suite, and write its table. Raises RunFailed where the table has an error."""
    torch.set_num_threads(config.trainer.threads)
    suite = _load(config.suite)
    rows = suite.run(config)
    result_table.write(rows, result_table.table_path(config), getattr(suite, "COLUMNS", result_table.COLUMNS))
    if failed := sum(bool(row.get("error")) for row in rows):
        raise RunFailed(f"{failed} of {len(rows)} failed; the table's column error says why")


def is_finished(config: Config) -> bool:
    """Return whether the table of a resumable suite (kernels, models) has all rows."""
    return _load(config.suite).finished(config)


def _load(name: str):
    return importlib.import_module(f"{suites.__name__}.{name}")
