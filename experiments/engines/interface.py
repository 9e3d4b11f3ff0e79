"""The interface of engines: a sweep has them submit a cell, tell its state and cancel it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from experiments.planning.plan import Plan
from experiments.runs.folders import RunPaused

DONE, FAILED, PAUSED = 0, 1, os.EX_TEMPFAIL
"""How a cell's process ends: complete; failed with a record in its run folder; paused with a checkpoint."""


class CellsLeft(RunPaused):
    """The engine has the cells, or wrote them down, and this command does not wait for them."""


@dataclass(frozen=True)
class State:
    """The state of a submitted cell, as far as it is known.

    doing: what to show of it while it is with the engine; share: the finished part of that phase, 0 to 1.
    ended: whether the engine has no more to do with it; then status is DONE, FAILED, PAUSED, or what a process that
    ended otherwise left (None: unknown), and why says how it ended where no record in the run folder does.
    lost: ended because its process or its node vanished: submitted again, it goes on from its last checkpoint.
    left: it is not waited for.
    """

    doing: str = ""
    share: float = 0.0
    ended: bool = False
    status: int | None = None
    why: str = ""
    lost: bool = False
    left: bool = False


class Engine(ABC):
    """Runs cells. A cell that an earlier command left with the engine is taken over by `submit`, not begun again.

    capacity: cells that it is to have at once.
    """

    capacity: int

    @abstractmethod
    def submit(self, planned: Plan) -> None:
        """Have the engine run a cell from its last checkpoint on."""

    @abstractmethod
    def state(self, planned: Plan) -> State:
        """The state of a submitted cell."""

    @abstractmethod
    def cancel(self, planned: Plan) -> bool:
        """End a cell, of this command or an earlier one, wherever it is; returns whether it was with the engine."""

    @abstractmethod
    def changed(self) -> list[Plan]:
        """Submitted cells whose state may be another one than before, ended ones too; waits a while for that."""

    def detached_message(self, left: int) -> str:
        """Return the line to print where so many cells are not waited for."""
        return f"{left} cells submitted; without sweep.action=submit the same command waits for them"

    @abstractmethod
    def close(self) -> None:
        """The command ends: let go of what goes on by itself, and end what cannot."""
