"""A cell as a Slurm job runs it: it makes room when told to, and is requeued where its job's time is up.

Imports nothing that takes time: a job handles signals before it loads the harness.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from experiments.system import signals

GRACE_S = 600
"""How long a job that was told to end waits for Slurm to end it: above grace times of partitions, and KillWait."""


class SlurmCell:
    """Trains the cell of a record. submitit pickles it by name; `checkpoint` makes it one that may be requeued.

    Slurm sends USR2 some time before the limit, and TERM when a job is cancelled or preempted. Both end the cell at the
    end of a step, with a checkpoint; after USR2 submitit requeues the job, after TERM Slurm does where it preempted.
    """

    def __init__(self, record: Path, workers: int) -> None:
        self.record, self.workers = record, workers

    def __call__(self) -> None:
        """Train, and leave the outcome beside the record; a job that makes room leaves none."""
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's
        signals.pause_on(signal.SIGUSR2, signal.SIGTERM)
        with signals.loading():
            from experiments.engines.engine import DONE, PAUSED, train_record
            from experiments.system.processes import discard
        status, why = train_record(self.record, discard, self.workers)
        if status != DONE and signals.received() == signal.SIGTERM:
            _leave()
        if status == PAUSED and signals.received() == signal.SIGUSR2:
            why = _requeued(requeue)
        write_outcome(self.record, status, why)

    def checkpoint(self) -> Any:
        """The same cell again: it finds its checkpoint in the run folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _leave() -> None:
    """End the process of a job that is cancelled or preempted, and has saved.

    Slurm requeues the jobs that it ends, after the partition's grace time, and none that ends by itself before.
    """
    from submitit import JobEnvironment

    if JobEnvironment().cluster != "local":
        time.sleep(GRACE_S)
    sys.exit(143)


def _requeued(requeue: Any) -> str:
    """Requeue this job, which ends the process; returns why not where it reached its time limit too often."""
    from submitit.core.utils import UncompletedJobError

    try:
        requeue(signal.SIGUSR2, None)
    except UncompletedJobError as error:
        return f"{error} The same command resumes it (sweep.slurm.requeues, sweep.slurm.minutes)"
    return "submitit did not requeue the job"


def outcome_path(record: Path) -> Path:
    """Return the path at which the job that trains the cell of a record leaves its outcome."""
    return record.with_suffix(".outcome.json")


def write_outcome(record: Path, status: int, why: str) -> None:
    """Say how the job of this process ended."""
    from submitit import JobEnvironment

    from zoo.files import write_json

    write_json(outcome_path(record), {"job": JobEnvironment().job_id, "status": status, "why": why})
