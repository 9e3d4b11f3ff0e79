"""Run folders: where a run lives, whether it is complete, who is working on it, and its metric rows (metrics.csv).

A run is found by its content: its folder is results/NAME/HASH, where the hash covers what can change its result (the
blocks it uses, the data's content, the recipe, the seed) and nothing else. It is complete when summary.json exists.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.system import locks
from zoo.errors import UserError
from zoo.files import write_atomic, write_json

SUMMARY, FAILURE, CONFIG, IDENTITY, BLOCK_FILES, METRICS = (
    "summary.json",
    "failure.json",
    "config.yaml",
    "identity.json",
    "block_files.json",
    "metrics.csv",
)
LOCK = ".lock"
NOT_EXPERIMENTS = ("report", "published", "verdict")  # folders among runs and experiments that hold no runs
NODES = ".nodes"  # in an experiment's folder: processes of several machines work in it

METRIC_COLUMNS = [
    "step",
    "tokens",
    "split",
    "loss",
    "aux_loss",
    "perplexity",
    "lr",
    "grad_norm",
    "grad_norm_max",
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]
WALL_CLOCK_COLUMNS = [
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]  # in which two equal runs may differ


class RunFailed(RuntimeError):
    """A run or some cells of a sweep failed; what happened is recorded in their folders."""


class RunPaused(RunFailed):
    """A run was told to stop before its last step; its checkpoint is written, and nothing is recorded as a failure."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of one run, and the state that the run is in."""

    path: Path

    @property
    def complete(self) -> bool:
        """Return whether the run has ended well: its summary is there."""
        return (self.path / SUMMARY).is_file() and not (self.path / SUMMARY).is_symlink()

    @property
    def failed(self) -> bool:
        """Return whether the last attempt failed."""
        return not self.complete and (self.path / FAILURE).is_file()

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.path / "checkpoints"

    @property
    def resumable(self) -> bool:
        """Return whether it is incomplete and has checkpoints to go on from."""
        return not self.complete and any(self.checkpoints.glob("*"))

    def begin(self, config_yaml: str, identity: dict[str, Any], block_files: dict[str, str]) -> None:
        """Write what the run is of before it trains, and remove half-written files of a killed attempt.

        block_files: hash by path; a run that goes on keeps those that it began with.
        Raises UserError where something in the folder is a link.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path)
        for leftover in self.path.glob("*.partial"):
            leftover.unlink()
        write_atomic(self.path / CONFIG, config_yaml)
        write_json(self.path / IDENTITY, identity)
        if not (self.resumable and (self.path / BLOCK_FILES).is_file()):
            write_json(self.path / BLOCK_FILES, block_files)

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run complete, and remove the record of an earlier failure."""
        write_json(self.path / SUMMARY, summary)
        (self.path / FAILURE).unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """Record a failed attempt with its traceback, unless the disk is full."""
        self.record(failure_record(error))

    def record(self, record: dict[str, Any]) -> None:
        """Write the record of a failed attempt (`failure_record`), unless the disk is full."""
        with contextlib.suppress(OSError):
            write_json(self.path / FAILURE, record)

    def failure(self) -> dict[str, Any]:
        """The record of the last failed attempt; where that is damaged, a message that says so."""
        try:
            return {"message": "no message", **self._read(FAILURE)}
        except UserError as error:
            return {"message": str(error)}

    def summary(self) -> dict[str, Any]:
        """The summary of a complete run."""
        return self._read(SUMMARY)

    def block_files(self) -> dict[str, str]:
        """Hash by path of its blocks' files when it began; {} where they are not recorded."""
        if self.complete:
            found = self.summary().get("block_files")
        else:
            found = self._read(BLOCK_FILES) if (self.path / BLOCK_FILES).is_file() else None
        return found if isinstance(found, dict) else {}

    def _read(self, name: str) -> dict[str, Any]:
        """Raises UserError where the file is damaged."""
        try:
            found = json.loads((self.path / name).read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise TypeError(f"it holds a {type(found).__name__}, not an object")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise self.damaged(name, error) from error
        return found

    def damaged(self, name: str, error: Exception) -> UserError:
        """The error to raise for a file of the run that does not hold what it should."""
        return UserError(
            f"{self.path / name} cannot be read ({type(error).__name__}: {error}); remove it, and the same command "
            "goes on with the run"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process while inside; waits while another one works on it.

        Raises UserError where the folder or its lock is a link, preemption.Paused where this process is told to make
        room while it waits.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for place in (self.path, self.path / LOCK, locks.claim_path(self.path / LOCK)):
            refuse_link(place)
        self.path.mkdir(exist_ok=True)
        message = f"{self.path} is being computed by another process; waiting for it"
        if not locks.is_of_one_machine(self.path):
            share_between_nodes(self.path.parent)
        with locks.locked(self.path / LOCK, message, nodes=(self.path.parent / NODES).exists()):
            yield


def share_between_nodes(experiment: Path) -> None:
    """Mark an experiment's folder: from now on its runs are held by claims that processes of other machines see.

    A machine that exports the folder sees a file system of its own, whose locks do not reach the others.
    """
    experiment.mkdir(parents=True, exist_ok=True)
    refuse_link(experiment / NODES)
    (experiment / NODES).touch()


def failure_record(error: BaseException) -> dict[str, Any]:
    """Return what failure.json says of a failed attempt."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "step": getattr(error, "step", None),
        "module": getattr(error, "module", None),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def resolves_outside(path: Path, root: Path) -> bool:
    """Return whether a path below a folder resolves, through links, to a place outside of it."""
    return not path.resolve().is_relative_to(root.resolve())


def refuse_link(place: Path) -> None:
    """Raise UserError where a file or folder is a symbolic link, so that nothing is written outside of the run."""
    if place.is_symlink():
        raise UserError(
            f"{place} is a link to {os.path.realpath(place)}, and nothing is written through links; remove it"
        )


def refuse_links(folder: Path) -> None:
    """Raise UserError for a link in a run's folder or those of its checkpoints, weights and probes (loggers may)."""
    inside = ("*", "checkpoints/*", "weights/*", "weights/*/*", "probes/*")
    for place in [place for pattern in inside for place in folder.glob(pattern)]:
        refuse_link(place)


class MetricLog:
    """The metric rows of one run. Columns are fixed when the file is made; `extra` are those of auxiliary losses."""

    def __init__(self, path: Path, extra: list[str]) -> None:
        self.path = path
        self.columns = METRIC_COLUMNS + sorted(extra)

    def cut(self, step: int) -> None:
        """Drop the rows after `step`, that of the checkpoint to resume from, and a torn last line."""
        kept = [row for row in read_metrics(self.path) if row["step"].isdigit() and int(row["step"]) <= step]
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        write_atomic(self.path, out.getvalue())

    def append(self, row: dict[str, Any]) -> None:
        """Add one row; numbers are written so that they read back exactly."""
        line = io.StringIO()
        csv.DictWriter(line, self.columns, lineterminator="\n", restval="").writerow(row)
        with open(self.path, "a", newline="") as file:
            file.write(line.getvalue())


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics file, as text; none if there is no file."""
    if not path.is_file():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    return [row for row in rows if None not in row and None not in row.values()]
