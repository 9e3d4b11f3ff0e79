"""Queues of jobs: Slurm's, or the processes that stand for jobs on this machine (sweep.slurm.cluster=local)."""

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
        found = re.search(r"JobState=(\w+)", _output_of("scontrol", "show", "job", job) or "")
        return found[1] if found else ""

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
