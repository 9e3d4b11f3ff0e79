"""job=train: one run, from a checked plan to a complete run folder; with --multirun all cells of a sweep."""

from __future__ import annotations

from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.planning.identity import tell_earlier
from experiments.planning.plan import Plan, plan
from experiments.runs import SUMMARY
from experiments.scoring.text import format_metrics
from experiments.system import signals
from experiments.system.processes import Bar
from experiments.training.execute import execute


def run(config: Config) -> None:
    """Train, unless the run is complete already; print its test metrics. Other engines take it as a sweep of one.

    With dry=true only say how far it is.
    """
    if config.dry or config.sweep.engine != "pool" or config.sweep.action != "wait":
        run_sweep([config])
        return
    planned = plan(config)
    tell_earlier([planned])
    bar = Bar(planned.title, config.trainer.progress)
    try:
        if not execute(planned, bar):
            print(f"already complete: {planned.folder.path}")
    finally:
        bar.close()
    print(_report(planned))


def run_sweep(configs: list[Config]) -> None:
    """Train all cells of a sweep that are not complete, `sweep.workers` at a time; with dry=true only list them."""
    with signals.loading():
        from experiments import sweep

    if configs[0].dry:
        sweep.list_cells(configs)
    else:
        sweep.run_sweep(configs)


def _report(planned: Plan) -> str:
    """The metrics and the folder of a complete run. Raises UserError where its summary is damaged."""
    summary = planned.folder.summary()
    try:
        lines = [f"{planned.title}: {summary['parameters']:,} parameters, best step {summary['best_step']}"]
        lines += [
            format_metrics(name, m, summary["data"].get(name, "")) for name, m in summary["metrics"].items()
        ]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise planned.folder.damaged(SUMMARY, error) from error
    return "\n".join([*lines, f"run folder: {planned.folder.path}"])


JOB = Job(
    "train",
    "train one model (with --multirun: a sweep) and score it on held-out text",
    run,
    reads=("dry",),
    run_sweep=run_sweep,
)
