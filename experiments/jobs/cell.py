"""job=cell: one cell of a sweep that `sweep.engine=list` wrote down, trained where this command runs."""

from __future__ import annotations

import signal
from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.system import signals
from experiments.system.processes import Bar
from zoo.errors import UserError


def run(config: Config) -> None:
    """Train the cell to its end. Raises UserError for a record that is none, RunFailed and RunPaused as training does.

    SIGUSR2 pauses it at the end of a step, with a checkpoint; while it is scored, or waits for another process that
    trains the same cell, at once. Slurm sends it before the time limit with `sbatch --signal=USR2@120`, to what `srun`
    starts and to nothing else.
    """
    with signals.loading():
        from experiments.engines.engine import enter_record, stops_when_signalled
        from experiments.training.execute import execute
    if config.run is None:
        raise UserError("job=cell needs run=results/NAME/.cells/RUN.json, as sweep.engine=list writes it")
    signals.pause_on(signal.SIGUSR2)
    planned = enter_record(Path(config.run), config.data.cache_dir)
    bar = Bar(planned.title, planned.config.trainer.progress)
    try:
        trained = execute(planned, stops_when_signalled(bar, planned.title))
    finally:
        bar.close()
    print(f"{'complete' if trained else 'already complete'}: {planned.folder.path}")


JOB = Job(
    "cell",
    "train one cell of a sweep that sweep.engine=list recorded",
    run,
    reads=("run",),
    needs="run=results/NAME/.cells/RUN.json",
)
