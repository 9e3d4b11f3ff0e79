"""The interface of engines, and cells as files, from which a process elsewhere trains a run.

The record NAME/.cells/RUN.json stands beside the run folder NAME/RUN, which is found from the record's own place: the
results may be mounted elsewhere on the other machine.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from experiments.planning.identity import as_format_1, run_name
from experiments.planning.plan import RECORD, Plan, from_record, plan, to_record
from experiments.runs import METRICS, RunPaused, read_metrics, refuse_link, share_between_nodes
from experiments.system import signals
from experiments.system.processes import Sink
from experiments.training.execute import execute
from zoo.errors import UserError
from zoo.files import read_json, write_json

# Processes that ended without a record.


# The interface: a sweep has an engine submit a cell, tell its state and cancel it.

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
        return f"{left} cells submitted; the same command without sweep.action=submit waits for them"

    @abstractmethod
    def close(self) -> None:
        """The command ends: let go of what goes on by itself, and end what cannot."""


# Cells as files.

FOLDER = ".cells"
_FORMAT = 1


def record_path(planned: Plan) -> Path:
    """Return the path of a cell's record."""
    return planned.folder.path.parent / FOLDER / f"{planned.run}.json"


def write_record(planned: Plan) -> Path:
    """Write the record of a cell and mark its experiment as one that several machines work in; returns its path."""
    path = record_path(planned)
    for place in (path.parent, path):
        refuse_link(place)
    share_between_nodes(planned.folder.path.parent)
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"format": _FORMAT, "folder": os.getcwd(), **to_record(planned)})
    return path


def read_record(path: Path) -> Plan:
    """The plan that a record holds, made again from its configuration and the text that is here.

    Raises UserError where the record is missing, damaged, of another version, or not of the run that it is named by.
    """
    return _plan_again(path, _read(path)[0])


def enter_record(path: Path, cache_dir: str | None) -> Plan:
    """The plan that a record holds; this process goes to the folder where its relative paths start.

    cache_dir: of whoever trains it; a record, which may be a stranger's, chooses no place.
    Raises UserError as `read_record`, and where that folder is not there.
    """
    path = path.absolute()
    planned, folder = _read(path)
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}, where the sweep was started and its relative paths begin: "
            f"{getattr(error, 'strerror', error)}; mount it on this machine"
        ) from error
    here = dataclasses.replace(planned.config.data, cache_dir=cache_dir)
    return _plan_again(
        path, dataclasses.replace(planned, config=dataclasses.replace(planned.config, data=here))
    )


_AGAIN = "give the sweep's command again, which rewrites it"


def _read(path: Path) -> tuple[Plan, str]:
    """The plan that a record holds, and the folder that the sweep's command was given in."""
    try:
        record = read_json(path, {"format": range(_FORMAT, _FORMAT + 1), "folder": str, **RECORD})
        planned = from_record(record, path.absolute().parent.parent / path.stem)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; {_AGAIN}") from error
    except ValueError as error:
        raise UserError(
            f"{path} is not a cell's record ({type(error).__name__}: {error}); {_AGAIN}"
        ) from error
    if run_name(planned.identity) != planned.run:
        raise UserError(f"{path} does not hold the cell that its name says; {_AGAIN}")
    return planned, record["folder"]


def _plan_again(path: Path, recorded: Plan) -> Plan:
    """The plan of a recorded one's configuration, in the folder that the record stands beside."""
    # Its runs lie beside it, wherever its configuration says.
    again = plan(dataclasses.replace(recorded.config, results=str(path.absolute().parents[2])))
    again = dataclasses.replace(
        again, config=dataclasses.replace(again.config, results=recorded.config.results)
    )
    for identity in (again.identity, as_format_1(again.identity, again.config.evaluate.splits)):
        if run_name(identity) == recorded.run:
            return dataclasses.replace(again, identity=identity, folder=recorded.folder)
    raise UserError(
        f"{path} is of another run than its name says: its configuration or the text that is here was changed; {_AGAIN}"
    )


def train_record(path: Path, sink: Sink, workers: int = 1) -> tuple[int, str]:
    """Train the cell of a record to its end; returns DONE, FAILED or PAUSED, and why in a line."""
    try:
        planned = read_record(path)
        planned.config.trainer.progress = False
        execute(planned, stops_when_signalled(sink, planned.title), workers)
    except RunPaused as pause:
        return PAUSED, str(pause)
    except Exception as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return FAILED, str(error)
    return DONE, ""


def progress(planned: Plan) -> State:
    """Return the state of a cell in training from the steps in its run folder, wherever it trains."""
    rows = read_metrics(planned.folder.path / METRICS)
    steps = planned.config.trainer.max_steps
    step = int(rows[-1]["step"]) if rows else 0
    return State(f"train {step}/{steps}", step / steps) if step else State("running")


def stops_when_signalled(sink: Sink, title: str) -> Sink:
    """A sink that raises RunPaused where this process is told to make room while scoring; training ends at a step."""

    def report(phase: str, done: int, total: int, note: str = "") -> None:
        sink(phase, done, total, note)
        if phase != "train" and signals.received() is not None:
            raise RunPaused(
                f"{title}: stopped by a signal while scoring {phase}; the same command resumes it"
            )

    return report
