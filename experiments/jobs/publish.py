"""job=publish: tables and figures of a study, with its verdict if any, in RESULTS/published/EXPERIMENT, to commit."""

from __future__ import annotations

from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job, reading_results
from experiments.jobs.report import runs_of
from experiments.system import machine, signals


def run(config: Config) -> None:
    """Write them. Raises UserError where the runs cannot be read or a part of what is published is missing."""
    with signals.loading():
        from analysis import load_results
        from analysis.publishing import Publication, publish
        from analysis.verdict_page.page import FOLDER, publish_verdict

    runs = runs_of(config)
    with reading_results():
        publication = Publication(
            config.question,
            tuple(config.figures),
            config.source,
            tuple(config.leave_out),
            machine.command(),
            *machine.commit(),
            config.baseline,
        )
        results = load_results(runs)
        place = publish(results, f"{config.results}/published", publication)
        if (Path(runs) / FOLDER).is_dir():
            publish_verdict(Path(runs), results, place)
        print(f"published: {place}")


JOB = Job(
    "publish",
    "write tables and figures=[...] of an experiment to results/published/NAME, to commit",
    run,
    reads=("runs",),
    needs='runs=results/NAME question="..."',
    place=runs_of,
)
