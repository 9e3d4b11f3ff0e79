"""Jobs, `python run.py job=NAME`. Adding one is a file NAME.py in this folder that defines `JOB`; nothing lists them.

A job's module is imported when it is run or described, so that no command waits for what another job needs; for the
same reason jobs, which alone may use `analysis`, import it in their functions.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.system import signals

if TYPE_CHECKING:
    from experiments.configuration.schema import Config


@dataclass(frozen=True)
class Job:
    """One thing that the program can do.

    name: as in job=NAME; help: a line of description; needs: its required keys, as typed; reads: which of run, runs
    and dry it reads (the command line refuses the others, which would do something else than what is meant).
    run: does it for one configuration. run_sweep: does it for all configurations of a --multirun together; None: `run`
    is called for one after the other, and `place` says where each writes its results, so that none is overwritten
    (it returns None where nothing is written).
    """

    name: str
    help: str
    run: Callable[[Config], None]
    needs: str = ""
    reads: tuple[str, ...] = ()
    run_sweep: Callable[[list[Config]], None] | None = None
    place: Callable[[Config], object] = lambda config: None


def find_job(name: str) -> Job:
    """The job of this name. Raises UserError, with a suggestion, where there is none."""
    names = _file_names()
    if name not in names:
        from zoo.errors import (
            unknown,  # zoo imports torch; run.py imports this module before it can be interrupted
        )

        raise unknown("job", name, names)
    job, mistake = _load(name)
    if job is None:
        from zoo.errors import UserError

        raise UserError(mistake)
    return job


def all_jobs(notify: Callable[[str], object] = lambda line: None) -> list[Job]:
    """Every job, by name. Imports all of their modules; notify: called with a line for each that cannot be used."""
    jobs = []
    for name in sorted(_file_names()):
        job, mistake = _load(name)
        if job is None:
            notify(mistake)
        else:
            jobs.append(job)
    return jobs


def _load(name: str) -> tuple[Job | None, str]:
    """The job in a file of this folder, or why there is none."""
    from zoo.registry import import_error, leave_out, left_out

    module = f"{__name__}.{name}"
    with signals.loading():
        if error := import_error(module):
            leave_out(module, error)
            return None, next(line for line in left_out(__name__) if module in line)
        job = getattr(importlib.import_module(module), "JOB", None)
    if not isinstance(job, Job):
        return None, f"experiments/jobs/{name}.py defines no JOB = Job(...); correct it, or move it elsewhere"
    return job, ""


def spelled_out(words: list[str]) -> list[str]:
    """The words of a command with `job=list tasks` as `job=list show=tasks`, `job=import from=X` as source=X."""
    if "job=import" in words:  # `from` is a word of Python, and no key of a dataclass can be called so
        return [
            f"source={word.removeprefix('from=')}" if word.startswith("from=") else word for word in words
        ]
    if "job=list" not in words:
        return words
    return [word if "=" in word or word.startswith("-") else f"show={word}" for word in words]


@contextlib.contextmanager
def reading_results() -> Iterator[None]:
    """While inside, results that cannot be read raise UserError."""
    from analysis import ResultsError
    from zoo.errors import UserError

    try:
        yield
    except ResultsError as error:
        raise UserError(str(error)) from error


def _file_names() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(__path__)]
