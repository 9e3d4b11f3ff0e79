"""job=train: one run, from a checked plan to a complete run folder; with --multirun all cells of a sweep."""

from __future__ import annotations

import sys
from collections import Counter

from experiments import engines
from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.planning.identity import refuse_lost_values, tell_earlier
from experiments.planning.plan import Plan, plan
from experiments.runs import SUMMARY, RunFailed, RunPaused
from experiments.scoring.text import format_metrics
from experiments.system import signals
from experiments.system.processes import Bar
from experiments.training.execute import execute
from zoo.errors import UserError


def run(config: Config) -> None:
    """Train, unless the run is complete already, and print its test metrics. With dry=true only say how far it is."""
    run_sweep([config])


def run_sweep(configs: list[Config]) -> None:
    """Train all cells that are not complete, `sweep.workers` at a time, one alone here; with dry=true only list them.

    Every configuration is checked before the first cell trains (UserError). Equal cells are trained once; in two
    folders they are refused. Raises RunFailed at the end if any failed, RunPaused if any paused.
    """
    for config in configs:
        engines.check(config)
    plans = [plan(config) for config in configs]
    refuse_lost_values(plans)
    _refuse_copies(plans)
    _tell_one_lowest_rate(plans)
    first = configs[0].sweep
    if configs[0].dry:
        _list(plans)
    elif len(plans) == 1 and first.engine == "pool" and first.action == "wait":
        _train_here(plans[0])
    else:
        _train(list({planned.folder.path: planned for planned in plans}.values()))


def _refuse_copies(plans: list[Plan]) -> None:
    """Raise UserError for cells that differ in nothing but their folder: they would be one run, trained twice."""
    first: dict[str, Plan] = {}
    for planned in plans:
        other = first.setdefault(planned.run, planned)
        if other.folder != planned.folder:
            raise UserError(
                f"{other.folder.path} and {planned.folder.path} would be the same run: they differ only in "
                "their folder "
                "(name, results); give the sweep one name and sweep over settings"
            )


def _tell_one_lowest_rate(plans: list[Plan]) -> None:
    """Print a notice where rates are swept to one lowest rate: their schedules then differ in shape."""
    rates = {p.config.optim.lr for p in plans if p.config.optim.schedule != "constant"}
    lowest = {p.config.optim.lr_min for p in plans}
    if len(rates) > 1 and len(lowest) == 1 and (lr_min := lowest.pop()) > 0:
        print(
            f"notice: the rates of this sweep all fall to optim.lr_min={lr_min:g}, so their schedules differ in shape; "
            "optim.lr_min_ratio=0.1 lets each fall to a tenth of itself",
            file=sys.stderr,
            flush=True,
        )


def _train_here(planned: Plan) -> None:
    """Train one run in this process, and print its test metrics."""
    tell_earlier([planned])
    bar = Bar(planned.title, planned.config.trainer.progress)
    try:
        if not execute(planned, bar):
            print(f"already complete: {planned.folder.path}")
    finally:
        bar.close()
    print(_report(planned))


def _train(plans: list[Plan]) -> None:
    """Train runs by their engine, several at once."""
    with signals.loading():
        from experiments.engines.engine import CellsLeft
        from experiments.sweep import train_all

    try:
        failed = train_all(plans)
    except CellsLeft as left:  # as the command said
        print(left)
        return
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plans)} cells failed; the same command tries them again")
    paused = sum(not p.done for p in plans)
    if paused:
        raise RunPaused(
            f"{paused} of {len(plans)} cells paused; the same command without trainer.pause_at resumes them"
        )
    for experiment in dict.fromkeys(planned.folder.path.parent for planned in plans):
        print(f"results: {experiment}; for tables and figures on one page: job=report runs={experiment}")


def _list(plans: list[Plan]) -> None:
    """Print a line a cell: its state, its run folder, and its name, which says in what it differs from others."""
    with signals.loading():
        from experiments.sweep import cell_names
    names, runs = cell_names(plans), {planned.folder.path: planned for planned in plans}
    states = {path: _state(planned) for path, planned in runs.items()}
    width = max(map(len, states.values()))
    for planned in plans:
        path = planned.folder.path
        print("  ".join([states[path].ljust(width), str(path), names[planned.run]]))
    counted = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    equal = f" ({len(states)} runs: equal cells are one)" if len(states) < len(plans) else ""
    tokens = sum(
        planned.config.tokens_per_step * planned.config.trainer.max_steps
        for path, planned in runs.items()
        if states[path] not in ("complete", "to score")
    )
    print(
        f"{len(plans)} cell{'s' * (len(plans) != 1)}{equal}: {counted}; up to {tokens:,} tokens "
        "to train on; dry=true trains nothing"
    )
    tell_earlier(runs.values())


def _state(planned: Plan) -> str:
    if planned.done:
        return "complete"
    if planned.folder.complete:
        return "to score"
    if planned.folder.resumable:
        return "to resume"
    return "failed" if planned.folder.failed else "new"


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
