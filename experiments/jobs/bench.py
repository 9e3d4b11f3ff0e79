"""job=bench suite=NAME: run a suite of measurements, print it and write its table.

suite=kernels dry=true only counts: bytes, FLOPs and roofline time of every kernel on an H200.
"""

from __future__ import annotations

import importlib

import torch

from experiments.bench import result_table, roofline
from experiments.plan import check_choices, check_numbers
from experiments.runs import RunFailed
from experiments.schema import Config
from zoo.errors import UserError, unknown

_WITH_CASES = ("compile", "kernels", "models")
SUITES = ("attention", "compile", "cpu", "harness", "kernels", "latency", "models", "recompute")


def run(config: Config) -> None:
    """Measure, and write <bench.out or results/bench>/<suite>.csv."""
    if config.suite not in SUITES:
        raise unknown("suite", config.suite, SUITES)
    b = config.bench
    numbers = b.repeats, b.pairs, b.steps, *(b.lengths or [1]), b.tokens or 1
    if min(numbers) < 1 or b.lengths == [] or b.tokens == 0:
        raise UserError(
            "bench.repeats, bench.pairs, bench.steps, bench.tokens and every length in bench.lengths must be at "
            "least 1"
        )
    check_choices(config)
    check_numbers(config)
    if b.cases is not None and config.suite not in _WITH_CASES:
        raise UserError(
            f"bench.cases chooses among those of suite={', '.join(_WITH_CASES)}, not of {config.suite}"
        )
    if config.dry:
        if config.suite != "kernels":
            raise UserError(f"dry=true counts what kernels have to do: suite=kernels, not {config.suite}")
        roofline.dry(b.cases, b.lengths or [roofline.DRY_LENGTH], b.tokens)
        return
    torch.set_num_threads(config.trainer.threads)
    suite = importlib.import_module(f"experiments.bench.suites.{config.suite}")
    rows = suite.run(config)
    result_table.write(rows, result_table.place(config), getattr(suite, "COLUMNS", result_table.COLUMNS))
    if failed := sum(bool(row.get("error")) for row in rows):
        raise RunFailed(f"{failed} of {len(rows)} failed; the table's column error says why")
