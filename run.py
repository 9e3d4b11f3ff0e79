"""The one entry to Archzoo: `python run.py [job=...] [key=value ...]`; `python run.py job=list` shows what there is."""

import sys

from experiments import interrupts


def report(config) -> None:
    """job=report runs=results/EXPERIMENT: compare the runs of an experiment on one HTML page."""
    with interrupts.leaving():
        from analysis import ResultsError, comparison_text, load_results, write_report
    from zoo import UserError

    runs = config.runs or f"{config.results}/{config.name}"
    try:
        print(comparison_text(load_results(runs)))
        print(f"report: {write_report(runs, workers=config.sweep.workers)}")
    except ResultsError as error:
        raise UserError(str(error)) from error


def publish(config) -> None:
    """job=publish runs=results/EXPERIMENT question="...": a study into RESULTS/published/EXPERIMENT, to commit."""
    from analysis import ResultsError, load_results
    from analysis.publish import Publication, publish
    from experiments import machine
    from zoo import UserError

    runs = config.runs or f"{config.results}/{config.name}"
    try:
        publication = Publication(
            config.question,
            tuple(config.figures),
            config.source,
            tuple(config.leave_out),
            machine.command(),
            *machine.commit(),
        )
        print(f"published: {publish(load_results(runs), f'{config.results}/published', publication)}")
    except ResultsError as error:
        raise UserError(str(error)) from error


def bench(config) -> None:
    """job=bench: measure, then draw the table if it has many cases."""
    from experiments.bench.tables import place
    from experiments.jobs import JOBS

    JOBS["bench"](config)
    if not config.dry:
        draw(place(config))


def gpu(config) -> None:
    """job=gpu: the stages, then figures of their tables."""
    from experiments.gpu.settings import Settings
    from experiments.jobs import JOBS

    JOBS["gpu"](config)
    for suite in ("kernels", "models"):
        draw(Settings.of(config).published / f"{suite}.csv")


def draw(table) -> None:
    """Figures of a table of measurements, beside it."""
    from analysis.plotting.bench import draw_table

    for path in draw_table(table):
        print(f"figure: {path}")


if __name__ == "__main__":
    interrupts.leave_at_once()
    from experiments.cli import main

    sys.exit(main(report=report, publish=publish, bench=bench, gpu=gpu))
