"""Sweeps of small cells that are disturbed while they run, and what must hold of them afterwards."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from experiments.runs import read_metrics
from support.program import Lab, Process, assert_same_run

STEPS = 1200
FIRST = 20
CELL = [
    f"trainer.max_steps={STEPS}",
    "trainer.log_every=1",
    "trainer.val_every=300",
    f"trainer.checkpoint_every={FIRST}",
]
"""Cells that train for some seconds, with a row a step."""
TWELVE = ["--multirun", *CELL[1:], f"trainer.max_steps={STEPS},20,21,22", "seed=0,1,2"]
"""A sweep of twelve cells, of which the first three train for some seconds."""


def wait_until(true: Callable[[], bool], process: Process, seconds: float = 300) -> None:
    """Until it holds; the command must go on meanwhile."""
    deadline = time.monotonic() + seconds
    while not true():
        assert process.running, process.wait()
        assert time.monotonic() < deadline, process.err.read_text()
        time.sleep(0.02)


def steps_of(folder: Path) -> list[int]:
    """The steps whose training rows a run has."""
    return [int(row["step"]) for row in read_metrics(folder / "metrics.csv") if row["split"] == "train"]


def under_way(lab: Lab) -> list[Path]:
    """Runs that have trained for some steps beyond a checkpoint, and are not complete."""
    return [f for f in lab.run_folders() if not (f / "summary.json").exists() and len(steps_of(f)) > 25]


def first_rows(folders: list[Path]) -> dict[Path, bytes]:
    """What runs under way have written before their first checkpoint; the times in it show who did."""
    return {f: b"".join((f / "metrics.csv").read_bytes().splitlines(keepends=True)[:FIRST]) for f in folders}


def assert_as_undisturbed(lab: Lab, whole: Lab, begun: dict[Path, bytes]) -> None:
    """Every run of the lab has each step once, and equals bit for bit that of a sweep that nobody disturbed.

    begun: the `first_rows` of those that were disturbed, which went on from a checkpoint and not from the start.
    """
    for folder, rows in begun.items():
        assert (folder / "metrics.csv").read_bytes().startswith(rows), (
            f"{folder} was trained again from the start"
        )
    assert [f.name for f in lab.run_folders()] == [f.name for f in whole.run_folders()]
    for folder, reference in zip(lab.run_folders(), whole.run_folders(), strict=True):
        assert steps_of(folder) == list(range(1, len(steps_of(reference)) + 1)), folder
        assert_same_run(folder, reference, folder.name)


def processes(*words: str) -> list[psutil.Process]:
    """Running processes whose command line has all of these words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if all(word in line for word in words):
            found.append(process)
    return found
