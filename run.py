"""The one entry to Archzoo: `python run.py [job=...] [key=value ...]`; `python run.py job=list` shows what there is."""

import sys


def report(config) -> None:
    """job=report runs=results/EXPERIMENT: compare the runs of an experiment on one HTML page."""
    from analysis.jobs import report as write

    write(config.runs or f"{config.results}/{config.name}")


if __name__ == "__main__":
    from experiments.cli import main

    sys.exit(main(report=report))
