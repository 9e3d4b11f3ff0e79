"""Finding the runs to probe: complete ones; other folders are named with the reason why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from experiments.configuration.schema import Config
from experiments.runs.folders import CONFIG, FAILURE, NOT_EXPERIMENTS, SUMMARY, RunFolder, resolves_outside
from experiments.system.os_errors import one_line
from zoo.errors import UserError

_DEPTH = 2  # results / experiment / run


def find_runs(config: Config) -> tuple[list[Path], list[str]]:
    """The complete runs of run=RUN or of runs=FOLDER, and a line about every other folder.

    Raises UserError where there is no complete one.
    """
    place = Path(config.run or config.runs or f"{config.results}/{config.name}")
    if not place.is_dir():
        raise UserError(f"{place} is no folder; give run=results/NAME/RUN or runs=results/NAME")
    found = [
        (folder, _elsewhere(folder, place) or _problem(folder))
        for folder in _folders(place, 0 if config.run else _DEPTH)
    ]
    runs = [folder for folder, problem in found if not problem]
    others = [f"{folder}: {problem}" for folder, problem in found if problem]
    if not runs:
        raise UserError(f"no complete run in {place}: {'; '.join(others[:5])}")
    return runs, others


def run_title(run: Path) -> str:
    """The name of a run in messages."""
    summary = RunFolder(run).summary()
    return one_line(f"{summary.get('name', run.name)} seed {summary.get('seed', '?')}")


def _folders(place: Path, depth: int, root: Path | None = None) -> Iterator[Path]:
    """Run folders below a run, an experiment or all results, folders without any, and links out of the first one."""
    root = root or place
    ends = resolves_outside(place, root) or _is_run(place) or not depth or _closed(place)
    inside = [] if ends else [x for x in sorted(place.iterdir()) if _may_hold_runs(x)]
    if not inside:
        yield place
    for folder in inside:
        yield from _folders(folder, depth - 1, root)


def _elsewhere(folder: Path, root: Path) -> str:
    """A message where a folder is a link to another place, which must be named explicitly; "" where it is none."""
    return (
        f"is a link to {folder.resolve()}; name that to have it probed"
        if resolves_outside(folder, root)
        else ""
    )


def _closed(folder: Path) -> bool:
    return not os.access(folder, os.R_OK | os.X_OK)


def _is_run(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in (SUMMARY, FAILURE, CONFIG))


def _may_hold_runs(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_")) and path.name not in NOT_EXPERIMENTS


def _problem(folder: Path) -> str:
    """Why there is no complete run in a folder; "" if there is."""
    if _closed(folder):
        return "may not be opened: no permission"
    run = RunFolder(folder)
    if not run.complete:
        return "failed" if run.failed else "not complete" if _is_run(folder) else "holds no run"
    try:
        summary = run.summary()
        return "" if isinstance(summary, dict) else f"its {SUMMARY} is none"
    except (OSError, ValueError, RecursionError) as error:
        return f"its {SUMMARY} cannot be read ({error})"
