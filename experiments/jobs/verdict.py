"""job=verdict block=NAME: what an hour can tell of a block, beside the plain transformer and its nearest relative."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job, reading_results
from experiments.system import signals
from zoo.config import ModelConfig
from zoo.errors import UserError


def run(config: Config) -> None:
    """Judge the block on one text or task."""
    run_sweep([config])


def run_sweep(configs: list[Config]) -> None:
    """Judge the block (`judge`), then write a report of what was trained, and the verdict's page.

    With dry=true only what is compared and its cost are said.
    configs: one for every text or task to learn. Raises UserError where tables are missing.
    """
    with signals.loading():
        from analysis import load_results, write_report
        from analysis.verdict_page.page import lines, write_verdict

    configs = [named(config) for config in configs]
    judge(configs)
    if configs[0].dry:
        return
    config, folder = configs[0], Path(configs[0].results) / configs[0].name
    with reading_results():
        results = load_results(folder) if any(folder.glob("*/summary.json")) else None
        if results is not None:
            print(f"report: {write_report(folder, workers=config.sweep.workers, baseline=config.baseline)}")
        page = write_verdict(folder, results)
    print("\n".join(lines(page.parent)))
    print(f"verdict: {page}")


def judge(configs: list[Config]) -> None:
    """Check contracts, measure sizes and speeds, compare what is learned, probe; what is done is not done again.

    A block that breaks a contract fails: nothing is trained, since its losses would mean nothing.
    """
    with signals.loading():
        from experiments.verdict import verdict_stages
        from experiments.verdict.measurements import find_block, models, nearest_relative

    config = configs[0]
    block = find_block(config.block)
    compared = models(config.model, block, nearest_relative(block, config.verdict.relative))
    _check(configs, compared)
    folder = None if config.dry else verdict_stages.open_verdict(config, block, compared)
    print(
        f"verdict on {block.name}, beside {' and '.join(name for name in compared if name != block.name)}",
        flush=True,
    )
    if folder is None:
        print(f"contract tests, sizes and speeds at lengths {config.verdict.lengths}, then:", flush=True)
        _compare(configs, compared)
        return
    rows = verdict_stages.check_contracts(folder, block)
    broken = [row for row in rows if int(row["failed"])]
    print(f"contracts: {len(rows) - len(broken)} of {len(rows)} kept", flush=True)
    if broken:
        return
    verdict_stages.measure_sizes(folder, config, compared)
    verdict_stages.measure_speeds(folder, config, compared)
    print("sizes and speeds: measured", flush=True)
    _compare(configs, compared)
    _probe(config)


def named(config: Config) -> Config:
    """The configuration with the experiment's name: verdict_BLOCK where the command gave none."""
    default = Config.name
    return dataclasses.replace(config, name=f"verdict_{config.block}") if config.name == default else config


def _check(configs: list[Config], models: dict[str, ModelConfig]) -> None:
    """Refuse what a verdict cannot be of, and a text, device or recipe that no model trains with. Raises UserError.

    Of the block itself nothing is asked here: what is wrong with it is for its contracts to say.
    """
    from experiments.costs.device_memory import check_fits
    from experiments.jobs import compare
    from experiments.parallel.group import pick_device
    from zoo.model import meta_model

    if not configs[0].verdict.lengths:
        raise UserError("verdict.lengths is empty; give sequence lengths, or leave it out")
    if len({config.block for config in configs}) > 1:
        raise UserError("job=verdict judges one block; give block=NAME once, and one command for each")
    plain = next(iter(models.values()))
    for model in models.values() if configs[0].sweep.engine == "pool" else ():
        check_fits(configs[0], meta_model(model, **configs[0].sizes), pick_device(configs[0].device))
    compare.checked([dataclasses.replace(config, model=plain) for config in configs])


def _compare(configs: list[Config], models: dict[str, ModelConfig]) -> None:
    """On every text or task, a rate for every model on validation, then other seeds."""
    from experiments.jobs import compare

    compare.compare(
        [dataclasses.replace(config, model=model) for config in configs for model in models.values()]
    )


def _probe(config: Config) -> None:
    """Probe the runs that were compared."""
    from experiments.jobs import probe

    probe.run(dataclasses.replace(config, runs=str(Path(config.results) / config.name), run=None))


JOB = Job(
    "verdict",
    "judge one block: contract tests, cost, speed and learning, beside its nearest relative",
    run,
    reads=("dry",),
    needs="block=NAME (+experiment=verdict plans for an hour)",
    run_sweep=run_sweep,
)
