"""job=bench suite=NAME: run a suite of measurements, print it and write its table.

suite=kernels dry=true only counts: bytes, FLOPs and roofline time of every kernel on an H200.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from experiments.bench import memory_traffic, result_table
from experiments.bench.cases import matching_names
from experiments.bench.run_suite import SUITES, run_suite
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.costs.device_memory import check_fits
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.planning.plan import check_served, check_writable
from experiments.system import signals
from zoo.config import ModelConfig
from zoo.errors import UserError, unknown
from zoo.model import meta_model

_WITH_CASES = (
    "compile",
    "harness",
    "inference",
    "kernels",
    "mixers",
    "models",
    "profile",
    "steps",
    "traffic",
)
_WITH_RUNS = "inference"
_USES = {
    "inference": ("scoring", "decoding"),
    "latency": ("scoring",),
    "models": ("training", "scoring", "decoding"),
    "profile": ("training",),
    "recompute": ("training",),
    "steps": ("training",),
}
"""What suites do with the models that they make by model.backend; the others choose backends themselves."""


def run(config: Config) -> None:
    """Check the configuration, then measure, and write and draw <bench.out or results/bench>/<suite>.csv."""
    _check(config)
    b = config.bench
    if config.dry:
        memory_traffic.print_work(b.cases, b.lengths or [memory_traffic.DRY_LENGTH], b.tokens)
    else:
        run_suite(config)
        draw(result_table.table_path(config))


def draw(table: Path) -> None:
    """Draw figures of a table of measurements, beside it, if it has many cases."""
    with signals.loading():
        from analysis.figures import inference
        from analysis.plotting.bench import draw_table

    for path in [*draw_table(table), *inference.draw_file(table)]:
        print(f"figure: {path}")


def _check(config: Config) -> None:
    """Raise UserError for a suite that there is not, a number out of range, or a key that the suite does not know."""
    if config.suite not in SUITES:
        raise unknown("suite", config.suite, SUITES)
    b = config.bench
    if b.lengths == []:
        raise UserError("bench.lengths is empty; give a length, or leave it out for the suite's own")
    _check_backend(config)
    if b.cases is not None and config.suite not in _WITH_CASES:
        raise UserError(f"bench.cases works with suite={', '.join(_WITH_CASES)}, not with {config.suite}")
    if b.runs is not None and config.suite != _WITH_RUNS:
        raise UserError(f"bench.runs works with suite={_WITH_RUNS}, not with {config.suite}")
    if config.dry and config.suite != "kernels":
        raise UserError(f"dry=true works with suite=kernels, not with {config.suite}")
    if not config.dry:
        check_writable(result_table.table_path(config).parent, "bench.out" if b.out else "results")
        for _, model in _models(config) if config.suite in _USES else ():
            check_fits(config, meta_model(model, **config.sizes), pick_device(config.device), tokens=0)


def _check_backend(config: Config) -> None:
    """Raise UserError for a backend that the suite does not use, or that one of its models cannot have."""
    backend = config.model.backend
    if backend == "auto":
        return
    if config.suite not in _USES:
        raise UserError(f"suite={config.suite} chooses backends itself; leave model.backend={backend} out")
    for name, model in _models(config):
        try:
            check_served(config, pick_device(config.device), model, _USES[config.suite])
        except UserError as error:
            more = ", or choose models by bench.cases" if config.suite in _WITH_CASES else ""
            raise UserError(f"{name}: {error}{more}") from error


def _models(config: Config) -> Iterator[tuple[str, ModelConfig]]:
    """The models that the suite makes; of runs it asks itself."""
    if config.suite == "recompute" or (config.suite == "profile" and config.bench.cases is None):
        yield "the model", config.model
    elif config.suite == "latency":
        from experiments.bench.suites.latency import PATTERNS

        yield from ((name, dataclasses.replace(config.model, pattern=x)) for name, x in PATTERNS.items())
    elif config.bench.cases is not None or not config.bench.runs:
        known = architectures(config.model)
        names = matching_names(config.bench.cases, list(known))
        if config.suite == "steps":
            names = ["transformer", *names]
        yield from ((name, known[name]) for name in dict.fromkeys(names))


JOB = Job(
    "bench",
    f"measure speed and memory: suite={' | '.join(SUITES)}",
    run,
    reads=("dry",),
    place=lambda config: None if config.dry else result_table.table_path(config),
)
