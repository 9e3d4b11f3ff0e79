"""job=report: the runs of an experiment, compared on one HTML page."""

from __future__ import annotations

from experiments.configuration.schema import Config
from experiments.jobs import Job, reading_results
from experiments.system import signals


def run(config: Config) -> None:
    """Print how the runs compare, and write the page. Raises UserError where they cannot be read."""
    with signals.loading():
        from analysis import comparison_text, load_results, write_report

    with reading_results():
        results = load_results(runs_of(config))
        print(comparison_text(results, config.baseline), flush=True)  # figures take longer
        print(f"report: {write_report(results, workers=config.sweep.workers, baseline=config.baseline)}")


def runs_of(config: Config) -> str:
    """The experiment to read: the one that runs= names, or that of name=."""
    return config.runs or f"{config.results}/{config.name}"


JOB = Job(
    "report",
    "compare the runs of an experiment on one HTML page",
    run,
    reads=("runs",),
    needs="runs=results/NAME",
    place=runs_of,
)
