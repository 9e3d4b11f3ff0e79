"""Run folders: where a run lives, whether it is complete, and who is working on it.

A run is found by its content: its folder is results/NAME/HASH, where the hash covers what can change its result (the
blocks it uses, the data's content, the recipe, the seed) and nothing else. It is complete when summary.json exists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.files import write_atomic, write_json

SUMMARY, FAILURE, CONFIG, IDENTITY, METRICS = (
    "summary.json",
    "failure.json",
    "config.yaml",
    "identity.json",
    "metrics.csv",
)
LOCK = ".lock"


class RunFailed(RuntimeError):
    """A run or some cells of a sweep failed; what happened is recorded in their folders."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of one run and what its state is."""

    path: Path

    @property
    def complete(self) -> bool:
        return (self.path / SUMMARY).is_file()

    @property
    def failed(self) -> bool:
        return not self.complete and (self.path / FAILURE).is_file()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def begin(self, config_yaml: str, identity: dict[str, Any]) -> None:
        """Write what the run is, before it runs; half-written files of a killed attempt go."""
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob("*.partial"):
            leftover.unlink()
        write_atomic(self.path / CONFIG, config_yaml)
        write_json(self.path / IDENTITY, identity)

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run complete; an earlier attempt's failure is history."""
        write_json(self.path / SUMMARY, summary)
        (self.path / FAILURE).unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """Record a failed attempt with its traceback; a full disk may keep even that from being written."""
        record = {
            "kind": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
            "step": getattr(error, "step", None),
            "module": getattr(error, "module", None),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        with contextlib.suppress(OSError):
            write_json(self.path / FAILURE, record)

    def failure(self) -> dict[str, Any]:
        """The record of the last failed attempt."""
        return json.loads((self.path / FAILURE).read_text())

    def summary(self) -> dict[str, Any]:
        """The summary of a complete run."""
        return json.loads((self.path / SUMMARY).read_text())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; waits while another one works on it. A killed process lets go by itself."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{self.path} is being computed by another process; waiting for it", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def digest(identity: dict[str, Any]) -> str:
    """12 hex digits of the identity; the order of keys does not matter."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
