"""Where jobs are: Slurm's queue, or the processes that stand for jobs on this machine (sweep.slurm.cluster=local)."""

from __future__ import annotations

import getpass
import re
import signal
import subprocess
import time
from typing import Protocol

import psutil

from zoo.errors import UserError

CANCELLED = "CANCELLED"
ELSEWHERE = (
    "and sweep.engine=slurm needs a machine that submits jobs: give the command there, or try it out here with "
    "sweep.slurm.cluster=local"
)


class Queue(Protocol):
    """The jobs that are waiting or running."""

    def refresh(self) -> None:
        """Look at the queue."""

    def state(self, job: str, began: float | None) -> str | None:
        """The state of a job when the queue was looked at, in Slurm's words; None: it is not there any more."""

    def began(self, job: str) -> float | None:
        """What tells the job from another one of the same number."""

    def end(self, job: str) -> str:
        """How a job that is gone ended, in Slurm's words; "" where nobody knows."""

    def cancel(self, job: str) -> None:
        """End a job."""


class SlurmQueue:
    """This user's jobs, as `squeue` lists them; `sacct`, which clusters may lack, is not asked."""

    def __init__(self) -> None:
        self.states: dict[str, str] | None = None

    def refresh(self) -> None:
        """Look at the queue; where Slurm does not answer later on, everything is where it was.

        Raises UserError where it does not answer the first time.
        """
        listed = _said("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%T")
        if listed is not None:
            self.states = dict(line.split("|", 1) for line in listed.split() if "|" in line)
        elif self.states is None:
            raise UserError(f"squeue does not answer, {ELSEWHERE}")

    def state(self, job: str, began: float | None) -> str | None:
        """PENDING, RUNNING, COMPLETING, REQUEUED, ..."""
        return (self.states or {}).get(job)

    def began(self, job: str) -> float | None:
        """Slurm uses a number once."""
        return None

    def end(self, job: str) -> str:
        """As `scontrol` has it for some minutes: CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, ..."""
        found = re.search(r"JobState=(\w+)", _said("scontrol", "show", "job", job) or "")
        return found[1] if found else ""

    def cancel(self, job: str) -> None:
        """`scancel`: the job is told by TERM, and killed after KillWait (of the cluster, 30 s mostly)."""
        subprocess.run(["scancel", job], check=True)


def _said(*command: str) -> str | None:
    """What a command wrote; None where it failed or took a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class LocalQueue:
    """Processes of this machine: submitit's controllers, whose numbers are the jobs'."""

    def refresh(self) -> None:
        """Processes are looked at one by one."""

    def state(self, job: str, began: float | None) -> str | None:
        """RUNNING while the controller that began then is there."""
        return "RUNNING" if began is not None and self.began(job) == began else None

    def began(self, job: str) -> float | None:
        """When the process began; None: there is none, or it has ended and nobody has asked how."""
        try:
            process = psutil.Process(int(job))
            return process.create_time() if _lives(process) else None
        except psutil.NoSuchProcess:
            return None

    def end(self, job: str) -> str:
        """Nobody knows."""
        return ""

    def cancel(self, job: str) -> None:
        """TERM, which the controller hands on: the cell ends with a checkpoint. After 30 s it is killed."""
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
    """Whether a process runs: one that has ended stays, as a zombie, until the command that started it asks."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
