"""On the nodes of a Ray cluster: the task that trains a cell, and the actor that owns a sweep's tasks.

Imports nothing that takes time: the actor needs none of the harness.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import ray

from experiments.engines.preloaded_worker import Ended, PreloadedWorker
from experiments.engines.supervisor import Supervisor

CHECK_S = 60.0
"""Seconds after which the actor checks again whether anybody needs it."""


class CellKilled(Exception):
    """The process of a cell was killed."""


_worker: PreloadedWorker | None = None
"""Of this worker process of Ray's, which one task after another uses."""


def train(supervisor: Any, record: str, workers: int, folder: str, threads: int) -> Ended:
    """Train the cell of a record in a process of its own; relative paths start at `folder`. Returns its outcome.

    supervisor: the actor that owns this task. Raises CellKilled where that process was killed, so that Ray tries again.
    """
    global _worker
    supervisor.begin.remote(record)
    os.chdir(folder)
    if _worker is None or not _worker.alive or _worker.threads != threads:
        _worker = PreloadedWorker(threads)
    status, why = _worker.train(Path(record), workers)
    if status is None:
        raise CellKilled(why)
    return status, why


class RaySupervisor(Supervisor):
    """The supervisor as an actor, whose tasks are Ray's."""

    def __init__(self) -> None:
        super().__init__()
        self.me = ray.get_runtime_context().current_actor
        threading.Thread(target=_check, args=(self.me,), daemon=True).start()

    def _start(self, record: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        # Ray's process stays for the next task, with the warm one that it started; a cell has its own.
        task = ray.remote(max_calls=0, retry_exceptions=[CellKilled])(train)
        return task.options(**options).remote(self.me, record, *arguments)

    def _ended(self, tasks: dict[str, Any]) -> dict[str, Ended]:
        ready, _ = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=0)
        return {record: _outcome(task) for record, task in tasks.items() if task in ready}

    def _kill(self, task: Any) -> None:
        ray.cancel(task, force=True)

    def _end(self) -> None:
        ray.actor.exit_actor()  # between two calls: what others ask meanwhile fails, and they start another supervisor


def _check(supervisor: Any) -> None:
    """Ask the supervisor again and again to end unless it is needed; by a call, which waits for others to end."""
    while True:
        time.sleep(CHECK_S)
        supervisor.end_unless_needed.remote()


def _outcome(task: Any) -> Ended:
    try:
        return ray.get(task)
    except CellKilled as error:  # retried as often as allowed, and so are the others
        return None, str(error.cause)
    except ray.exceptions.RayTaskError as error:
        return None, f"{type(error.cause).__name__}: {error.cause}"
    except ray.exceptions.RayError as error:
        return None, str(error).strip().splitlines()[0]
