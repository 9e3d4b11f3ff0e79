"""Cells in forks of a process that has imported the harness: imports, which take seconds, are made once for many cells.

The process (`python -m experiments.engines.preloaded_worker`) reads a cell a line and writes how it ended. It starts
no threads, which a fork would lose, and touches no GPU; what a cell leaves behind ends with its fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.system import signals
from experiments.system.paths import python_path
from experiments.system.torchrun import as_parent, end_with_parent

Ended = tuple[int | None, str]
"""The status of a cell, None where its process was killed, and why in a line."""

GPUS = "CUDA_VISIBLE_DEVICES"


def exit_reason(status: int | None) -> str:
    """Return the end of a process that left no record in words: its exit status, or the signal that killed it."""
    return (
        f"killed by signal {-status}"
        if status is not None and status < 0
        else f"stopped with status {status}"
    )


class PreloadedWorker:
    """A worker process that has already imported torch, as held by the process that started it; both end together.

    threads: of each cell; they have to be known before torch is imported.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        count = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "experiments.engines.preloaded_worker"],
            env={**os.environ, **count, **as_parent(), "PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def alive(self) -> bool:
        """Return whether the process is there."""
        return self.process.poll() is None

    def train(self, record: Path, workers: int) -> Ended:
        """Train the cell of a record on the GPUs that this process sees now, and wait for its end."""
        asked = {"record": str(record.absolute()), "workers": workers, "gpus": os.environ.get(GPUS)}
        try:
            with contextlib.suppress(BrokenPipeError):  # one that could not load has said so, and is gone
                print(json.dumps(asked), file=self.process.stdin, flush=True)
            status, why = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            return None, f"the process that starts cells: {exit_reason(self.process.wait())}"
        return status, why


def main() -> None:
    """Train the cells that standard input names, one after another, until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what cells print is no answer
    try:
        with signals.loading():
            import experiments.training.train  # noqa: F401
    except Exception as error:
        why = f"the harness cannot be loaded: {type(error).__name__}: {error}"
        print(json.dumps((None, why)), file=answers, flush=True)
        raise
    for line in sys.stdin:
        print(json.dumps(_in_a_fork(json.loads(line))), file=answers, flush=True)


def _in_a_fork(asked: dict[str, Any]) -> Ended:
    here, there = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL, parent)
        _train(asked, there)
    os.close(there)
    with os.fdopen(here) as said:
        answer = said.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        return None, f"its process: {exit_reason(os.waitstatus_to_exitcode(status))}"
    status, why = json.loads(answer)
    return status, why


def _train(asked: dict[str, Any], there: int) -> None:
    """Train a cell in the fork, which ends here whatever happens."""
    try:
        from experiments.engines.engine import train_record
        from experiments.system.processes import discard

        if asked["gpus"] is not None:
            os.environ[GPUS] = asked["gpus"]
        answer = json.dumps(train_record(Path(asked["record"]), discard, asked["workers"]))
        os.write(there, answer.encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    main()
