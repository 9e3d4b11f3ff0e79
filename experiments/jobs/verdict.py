"""job=verdict block=NAME: what an hour can tell of a block, beside the plain transformer and its nearest relative."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from experiments import interrupts
from experiments.jobs import Job
from experiments.schema import Config
from zoo.config import ModelConfig
from zoo.errors import UserError


def run(config: Config) -> None:
    """Check contracts, measure sizes and speeds, compare what is learned, probe; what is done is not done again.

    A block that breaks a contract is condemned: nothing is trained, since its losses would mean nothing.
    """
    with interrupts.exiting():
        from experiments.verdict import stages
        from experiments.verdict.models import find_block, models, nearest_relative

    config = named(config)
    block = find_block(config.block)
    found = models(config.model, block, nearest_relative(block, config.verdict.relative))
    _check(config)
    folder = stages.open_verdict(config, block, found)
    print(
        f"verdict on {block.name}, beside {' and '.join(name for name in found if name != block.name)}",
        flush=True,
    )
    rows = stages.check_contracts(folder, block)
    broken = [row for row in rows if int(row["failed"])]
    print(f"contracts: {len(rows) - len(broken)} of {len(rows)} kept", flush=True)
    for row in broken:
        print(f"  broken: {row['contract']} ({row['case']}: {row['reason']})", flush=True)
    if broken:
        return
    stages.measure_sizes(folder, config, found)
    stages.measure_speeds(folder, config, found)
    print("sizes and speeds: measured", flush=True)
    _compare(config, found)
    _probe(config)


def named(config: Config) -> Config:
    """The configuration with the experiment's name: verdict_BLOCK where the command gave none."""
    default = Config.name
    return dataclasses.replace(config, name=f"verdict_{config.block}") if config.name == default else config


def _check(config: Config) -> None:
    lengths = config.verdict.lengths
    if not lengths or min(lengths) < 1:
        raise UserError(f"verdict.lengths={lengths} must name sequence lengths of at least 1")


def _compare(config: Config, models: dict[str, ModelConfig]) -> None:
    """A rate for every model on validation, then other seeds, on the configured text."""
    from experiments.jobs import compare

    compare.run_sweep([dataclasses.replace(config, model=model) for model in models.values()])


def _probe(config: Config) -> None:
    """Probe the runs that were compared."""
    from experiments.jobs import probe

    probe.run(dataclasses.replace(config, runs=str(Path(config.results) / config.name), run=None))


JOB = Job(
    "verdict",
    "what an hour can tell of a block: contracts, cost, speed, learning, beside its relatives",
    run,
    needs="block=NAME; +experiment=verdict for the hour",
)
