"""job=papers: headline results of the papers behind the blocks, each a comparison of its own (conf/headline)."""

from __future__ import annotations

from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.system import signals
from experiments.system.paths import PUBLISHED
from zoo.errors import UserError


def run(config: Config) -> None:
    """Compare the models of one headline (`run_sweep` of it alone)."""
    run_sweep([config])


def run_sweep(configs: list[Config]) -> None:
    """Say what every headline will cost, compare its models (job=compare) and judge it; with dry=true only say it.

    configs: one for every headline, whose experiment it names. All are checked before anything is trained. Raises
    UserError.
    """
    with signals.loading():
        from analysis.evidence import headlines
        from experiments.compare.time_estimate import minutes
        from experiments.jobs import compare

    _check(configs)
    least = most = 0.0
    for config in configs:
        few, many, sentence = _cost(config)
        least, most = least + few, most + many
        print(sentence, flush=True)
    print(f"in all: {minutes(least, most)}; start-up and scoring come on top", flush=True)
    if configs[0].dry:
        return
    for config in configs:
        print(f"{config.name}:", flush=True)
        compare.compare([config])
    verdicts = headlines.judge_all([Path(configs[0].results), PUBLISHED])
    print("\n".join(headlines.lines(verdicts)))


def _check(configs: list[Config]) -> None:
    """Refuse headlines that share an experiment: their models would be compared with each other. Raises UserError."""
    if len({config.name for config in configs}) < len(configs):
        raise UserError("job=papers gives every headline its own experiment; leave name=... out")
    if not all(config.compare.models for config in configs):
        raise UserError("job=papers compares the models of a headline: +experiment=papers headline=NAME")


def _cost(config: Config) -> tuple[float, float, str]:
    """Core-seconds of a headline's training, at least and at most, and a line that says them."""
    from experiments.compare.select import named_models, start
    from experiments.compare.time_estimate import core_seconds, minutes

    selections = start(named_models(config))
    least, most = core_seconds(selections)
    steps = selections[0].trials[0].planned.config.trainer.max_steps
    return (
        least,
        most,
        f"{config.name}: {len(selections)} models, {steps:,} steps a run, {minutes(least, most)}",
    )


JOB = Job(
    "papers",
    "test headline results of the papers behind the blocks (dry=true: estimate the cost only)",
    run,
    reads=("dry",),
    needs="+experiment=papers [headline=NAME]",
    run_sweep=run_sweep,
)
