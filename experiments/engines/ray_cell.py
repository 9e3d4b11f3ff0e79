"""On the nodes of a Ray cluster: the task that trains a cell, and the actor that owns a sweep's tasks.

Imports nothing that takes time: the actor needs none of the harness.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from experiments.engines.warm import Ended, Warm


class CellKilled(Exception):
    """The process of a cell was killed."""


_warm: Warm | None = None
"""Of this worker process of Ray's, which one task after another uses."""


def train(record: str, workers: int, folder: str, threads: int) -> Ended:
    """Train the cell of a record in a process of its own; relative paths start at `folder`. Returns its outcome.

    Raises CellKilled where that process was killed, so that Ray tries again.
    """
    global _warm
    os.chdir(folder)
    if _warm is None or not _warm.alive or _warm.threads != threads:
        _warm = Warm(threads)
    status, why = _warm.train(Path(record), workers)
    if status is None:
        raise CellKilled(why)
    return status, why


class Keeper:
    """Owns the tasks of an experiment's cells, so that they outlive the command that submitted them."""

    def __init__(self) -> None:
        self.tasks: dict[str, Any] = {}
        self.cancelled: set[str] = set()

    def submit(self, record: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Start the task of a cell, unless it is there."""
        self.cancelled.discard(record)
        if record not in self.tasks:
            # Ray's process stays for the next task, with the warm one that it started; a cell has its own.
            task = ray.remote(max_calls=0, retry_exceptions=[CellKilled])(train)
            self.tasks[record] = task.options(**options).remote(record, *arguments)

    def ended(self) -> dict[str, Ended | None]:
        """The outcome of every cell, None of those that have not ended. An outcome that was told is forgotten."""
        found: dict[str, Ended | None] = {
            **dict.fromkeys(self.tasks),
            **dict.fromkeys(self.cancelled, (None, "cancelled")),
        }
        if self.tasks:
            ready, _ = ray.wait(list(self.tasks.values()), num_returns=len(self.tasks), timeout=0)
            found.update({name: _outcome(ref) for name, ref in self.tasks.items() if ref in ready})
        self.tasks = {name: ref for name, ref in self.tasks.items() if found[name] is None}
        return found

    def cancel(self, record: str) -> bool:
        """Kill the process of a cell; returns whether there was a task."""
        ref = self.tasks.pop(record, None)
        if ref is not None:
            self.cancelled.add(record)  # for a command that waits for the cell: its task did not vanish
            ray.cancel(ref, force=True)
        return ref is not None


def _outcome(ref: Any) -> Ended:
    try:
        return ray.get(ref)
    except CellKilled as error:  # retried as often as allowed, and so are the others
        return None, str(error.cause)
    except ray.exceptions.RayError as error:
        return None, str(error).strip().splitlines()[0]
