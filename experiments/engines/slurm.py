"""`slurm`: one job a cell, by submitit. Jobs outlive the command, which finds them again by their records."""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil

from experiments.configuration.schema import SlurmConfig
from experiments.engines.engine import DONE, Engine, State, progress, record_path, write_record
from experiments.engines.slurm_cell import SlurmCell, outcome_path
from experiments.planning.plan import Plan
from experiments.system import signals
from experiments.system.paths import python_path
from zoo.errors import UserError
from zoo.files import read_json, write_json

# Queues of jobs: Slurm's, or processes of this machine in their place (sweep.slurm.cluster=local).

CANCELLED = "CANCELLED"
ELSEWHERE = (
    "and sweep.engine=slurm needs a machine that submits jobs: run the command there, or try it out here with "
    "sweep.slurm.cluster=local"
)


class Queue(Protocol):
    """The jobs that are waiting or running."""

    def refresh(self) -> None:
        """Read the states of all jobs anew; `state` answers from them."""

    def state(self, job: str, began: float | None) -> str | None:
        """Return a job's state at the last `refresh`, in Slurm's words; None: it is not in the queue any more.

        began: the result of `began` when the job was submitted.
        """

    def began(self, job: str) -> float | None:
        """Return when the job began, in seconds since 1970; None where it is gone, or where numbers are used only once.

        It tells a job from another one of the same number.
        """

    def end(self, job: str) -> str:
        """Return Slurm's word for the way in which a job that is gone ended, "" where it is unknown."""

    def cancel(self, job: str) -> None:
        """End a job that is in the queue."""


class SlurmQueue:
    """This user's jobs, as `squeue` lists them; `sacct`, which clusters may lack, is not asked."""

    def __init__(self) -> None:
        self.states: dict[str, str] | None = None

    def refresh(self) -> None:
        """Ask `squeue` for the states of all jobs of this user; where it does not answer, those of the last time stay.

        Raises UserError where it does not answer the first time.
        """
        listed = _output_of("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%T")
        if listed is not None:
            self.states = dict(line.split("|", 1) for line in listed.split() if "|" in line)
        elif self.states is None:
            raise UserError(f"squeue does not answer, {ELSEWHERE}")

    def state(self, job: str, began: float | None) -> str | None:
        """Return PENDING, RUNNING, COMPLETING, REQUEUED, ...; None for a job that `squeue` does not list."""
        return (self.states or {}).get(job)

    def began(self, job: str) -> float | None:
        """Return None: Slurm uses a number once."""
        return None

    def end(self, job: str) -> str:
        """Return CANCELLED, TIMEOUT, NODE_FAIL, ..., which `scontrol` tells for some minutes; later on ""."""
        match = re.search(r"JobState=(\w+)", _output_of("scontrol", "show", "job", job) or "")
        return match[1] if match else ""

    def cancel(self, job: str) -> None:
        """Call `scancel`: the job gets SIGTERM, and is killed after the cluster's KillWait (30 s by default).

        Raises CalledProcessError where Slurm refuses, and FileNotFoundError where there is no `scancel`.
        """
        subprocess.run(["scancel", job], check=True)


def _output_of(*command: str) -> str | None:
    """Return the standard output of a command; None where it failed or took a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class LocalQueue:
    """Processes of this machine: submitit's controllers, whose numbers are the jobs'."""

    def refresh(self) -> None:
        """Do nothing: `state` asks for each process by itself."""

    def state(self, job: str, began: float | None) -> str | None:
        """Return RUNNING while the controller that began at that time is there, else None."""
        return "RUNNING" if began is not None and self.began(job) == began else None

    def began(self, job: str) -> float | None:
        """Return when the process began, in seconds since 1970; None where there is none, or only a zombie."""
        try:
            process = psutil.Process(int(job))
            return process.create_time() if _lives(process) else None
        except psutil.NoSuchProcess:
            return None

    def end(self, job: str) -> str:
        """Return "": a process that is gone left no word of its end here."""
        return ""

    def cancel(self, job: str) -> None:
        """Send SIGTERM to the job's controller, which hands it on, so that the cell ends with a checkpoint.

        Whatever of it is left after 30 s is killed. A job that is gone already is no error.
        """
        try:
            controller = psutil.Process(int(job))
            family = [*controller.children(recursive=True), controller]
            controller.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            return
        deadline = time.monotonic() + 30
        while (left := [x for x in family if _lives(x)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()


def _lives(process: psutil.Process) -> bool:
    """Return whether a process runs: one that has ended stays, as a zombie, until its parent asks for its status."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# The engine.

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
        with signals.blocked(), _environment(planned.config.trainer.threads):
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
    count = str(threads)
    changes = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
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
        return read_json(path, {str: object})
    except (OSError, ValueError):
        return {}
