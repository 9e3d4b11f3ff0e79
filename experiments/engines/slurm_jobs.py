"""`slurm`: one job a cell, by submitit. Jobs outlive the command, which finds them again by their records."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.configuration.sweep_config import SlurmConfig
from experiments.engines.cell import progress, record_path, write_record
from experiments.engines.interface import DONE, Engine, State
from experiments.engines.slurm_cell import SlurmCell, outcome_path
from experiments.engines.slurm_queue import CANCELLED, ELSEWHERE, LocalQueue, Queue, SlurmQueue
from experiments.planning.plan import Plan
from experiments.system import interrupts
from experiments.system.paths import ROOT
from zoo.errors import UserError
from zoo.files import write_json

JOBS = "jobs"


class SlurmJobs(Engine):
    """A job a cell. NAME/.cells/RUN.job.json names it and its output.

    submitit's pickles go to a new folder for every command, NAME/.cells/jobs/..., so that no job ever loads one that
    was there before, as in results that came from somebody else.
    """

    def __init__(self, plans: list[Plan]) -> None:
        sweep = plans[0].config.sweep
        self.slurm, self.leave = sweep.slurm, sweep.action == "submit"
        local = self.slurm.cluster == "local"
        self.capacity = sweep.workers if local else self.slurm.jobs
        self.at_once = sweep.workers if local else 1  # a job has its processors for itself
        self.queue: Queue = LocalQueue() if local else SlurmQueue()
        self.submitted: dict[str, Plan] = {}
        self.gone: set[str] = set()
        # Both here, so that a machine without Slurm is named before anything is written.
        self.folder = record_path(plans[0]).parent / JOBS / secrets.token_hex(4)
        self.executor = _executor(self.slurm, self.folder)
        self.queue.refresh()

    def submit(self, planned: Plan) -> None:
        """Submit a job for the cell, unless one that an earlier command submitted is there."""
        self.submitted[planned.run] = planned
        self.gone.discard(planned.run)
        if self._job_state(planned) is not None and not _outcome(planned):
            return
        record = write_record(planned)
        outcome_path(record).unlink(missing_ok=True)
        self.executor.update_parameters(**_parameters(self.slurm, planned))
        # A job of this machine is a child of this process, which Ctrl-C in a terminal would reach.
        with interrupts.blocked(), _environment(planned.config.trainer.threads):
            job = self._submitted(SlurmCell(record, self.at_once))
        content = {"cluster": self.slurm.cluster, "job": job, "began": self.queue.began(job)}
        write_json(_job_path(planned), {**content, "output": str(self.folder / f"{job}_0_log.out")})

    def _submitted(self, cell: SlurmCell) -> str:
        """Submit a job for a cell and return its number. Raises UserError with sbatch's error message."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            return self.executor.submit(cell).job_id
        except (FailedJobError, FailedSubmissionError) as error:
            raise UserError(f"Slurm refused the job: {error}; change sweep.slurm.* accordingly") from error

    def state(self, planned: Plan) -> State:
        """Return the cell's state as the run folder, the outcome that its job left, and the queue tell it."""
        job = _job(planned)
        if planned.done:
            return State(ended=True, status=DONE)
        if self.leave:
            return State(ended=True, left=True, why=f"submitted: job {job['job']}")
        state = self._job_state(planned)
        if outcome := _outcome(planned):
            return State(ended=True, status=outcome["status"], why=outcome["why"])
        if state is None:
            return self._lost(planned, job)
        return progress(planned) if state == "RUNNING" else State(state.lower())

    def changed(self) -> list[Plan]:
        """Wait sweep.slurm.poll_s seconds, refresh the queue and return all submitted cells, as any may have changed.

        With sweep.action=submit it does not wait. Raises UserError where Slurm never answered (`SlurmQueue.refresh`).
        """
        if not self.leave:
            time.sleep(self.slurm.poll_s)
        self.queue.refresh()
        return list(self.submitted.values())

    def cancel(self, planned: Plan) -> bool:
        """End the cell's job; returns whether it was in the queue."""
        if self._job_state(planned) is None:
            return False
        job = _job(planned)["job"]
        # First, for a command that waits for the cell: the job does not vanish.
        write_json(outcome_path(record_path(planned)), {"job": job, "status": None, "why": "cancelled"})
        self.queue.cancel(job)
        return True

    def close(self) -> None:
        """Do nothing: jobs go on without this command."""

    def _job_state(self, planned: Plan) -> str | None:
        job = _job(planned)
        if job.get("cluster") != self.slurm.cluster:
            return None
        return self.queue.state(job["job"], job["began"])

    def _lost(self, planned: Plan, job: dict[str, Any]) -> State:
        """A job that is gone without an outcome; so at the second look only, as files may come late over networks."""
        if planned.run not in self.gone:
            self.gone.add(planned.run)
            return State("ending")
        how = self.queue.end(job["job"])
        why = f"job {job['job']} ended without an outcome{f' ({how})' if how else ''}; its output: {job['output']}"
        return State(ended=True, why=why, lost=how != CANCELLED)


def _executor(slurm: SlurmConfig, folder: Path) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("sweep.engine=slurm needs submitit: pip install -e '.[slurm]'") from None
    made = submitit.LocalExecutor if slurm.cluster == "local" else submitit.SlurmExecutor
    try:
        return made(folder, max_num_timeout=slurm.requeues)
    except RuntimeError:  # what submitit raises where there is no srun
        raise UserError(f"there is no srun here, {ELSEWHERE}") from None


def _parameters(slurm: SlurmConfig, planned: Plan) -> dict[str, Any]:
    """Return the job's settings by the names that submitit's executors have for them."""
    shared = {"setup": slurm.setup or None, "signal_delay_s": slurm.signal_s, "stderr_to_stdout": True}
    if slurm.cluster == "local":
        return {**shared, "setup": slurm.setup, "timeout_min": slurm.minutes, "gpus_per_node": slurm.gpus}
    more = dict(option.split("=", 1) for option in slurm.more)
    return {
        **shared,
        "job_name": f"{planned.config.name}-{planned.run}",
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": math.ceil(slurm.minutes),
        "cpus_per_task": slurm.cpus,
        "srun_args": [f"--cpus-per-task={slurm.cpus}"],  # Slurm 22.05 and later does not hand it on to srun
        "gpus_per_node": slurm.gpus or None,
        "mem": None if slurm.memory_gb is None else f"{math.ceil(1024 * slurm.memory_gb)}MB",
        "wckey": None,
        "additional_parameters": {"requeue": True, **more},
    }


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Return a context manager inside which submitted jobs find this code and compute with so many threads."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    changes = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _job_path(planned: Plan) -> Path:
    return record_path(planned).with_suffix(".job.json")


def _job(planned: Plan) -> dict[str, Any]:
    return _read(_job_path(planned))


def _outcome(planned: Plan) -> dict[str, Any]:
    """Return the outcome that the cell's last job left, or the command that cancelled it; empty where there is none."""
    outcome = _read(outcome_path(record_path(planned)))
    return outcome if outcome and outcome.get("job") == _job(planned).get("job") else {}


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
