"""The owner of a sweep's tasks, which outlives its commands: tasks, their outcomes, and the commands that wait.

Knows nothing of Ray, and imports nothing that takes time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from experiments.engines.preloaded_worker import Ended

WAITING, RUNNING = "waiting", "running"
"""Of a task: Ray has no place for it yet; it has begun."""

Lease = tuple[str, float]
"""A command, and the seconds for which it counts as there if it asks no more: a killed one says no detached_message."""


class Supervisor(ABC):
    """Owns the tasks of an experiment's cells, so that they outlive the command that submitted them.

    An outcome is kept until its cell is submitted again, so that every command that waits for it is told. The
    supervisor ends where no task is left and no command is there to be told.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, Any] = {}
        self.begun: set[str] = set()
        self.outcomes: dict[str, Ended] = {}
        self.until: dict[str, float] = {}

    def submit(self, lease: Lease, record: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Start a task for the cell of a record, unless one has not ended yet; returns whether it was started."""
        self._renew(lease)
        self._settle()
        if record in self.tasks:
            return False
        self.outcomes.pop(record, None)
        self.begun.discard(record)
        self.tasks[record] = self._start(record, arguments, options)
        return True

    def begin(self, record: str) -> None:
        """Note that a task has begun: its state turns from WAITING to RUNNING."""
        if record in self.tasks:
            self.begun.add(record)

    def states(self, lease: Lease) -> dict[str, str | Ended]:
        """Record -> WAITING or RUNNING, or how the last task of its cell ended."""
        self._renew(lease)
        self._settle()
        under_way = {record: RUNNING if record in self.begun else WAITING for record in self.tasks}
        return {**self.outcomes, **under_way}

    def cancel(self, record: str) -> bool:
        """Kill the process of a cell; returns whether there was a task that had not ended."""
        self._settle()
        task = self.tasks.pop(record, None)
        if task is not None:
            self.outcomes[record] = (None, "cancelled")
            self._kill(task)
        return task is not None

    def leave(self, command: str) -> None:
        """Forget a command that waits for cells: it has ended. Ends where no other waits and no task is left."""
        self.until.pop(command, None)
        self.end_unless_needed()

    def end_unless_needed(self) -> None:
        """End where no task is left and no command waits."""
        self._settle()
        self.until = {command: until for command, until in self.until.items() if until > time.monotonic()}
        if not self.tasks and not self.until:
            self._end()

    def _renew(self, lease: Lease) -> None:
        command, seconds = lease
        self.until[command] = time.monotonic() + seconds

    def _settle(self) -> None:
        """Take the outcomes of tasks that have ended."""
        ended = self._ended(self.tasks) if self.tasks else {}
        self.outcomes.update(ended)
        self.tasks = {record: task for record, task in self.tasks.items() if record not in ended}

    @abstractmethod
    def _start(self, record: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Start a task for the cell of a record."""

    @abstractmethod
    def _ended(self, tasks: dict[str, Any]) -> dict[str, Ended]:
        """Record -> the outcome of each of these tasks that has ended."""

    @abstractmethod
    def _kill(self, task: Any) -> None:
        """Kill the process of a task, for good."""

    @abstractmethod
    def _end(self) -> None:
        """End the process of the supervisor."""
