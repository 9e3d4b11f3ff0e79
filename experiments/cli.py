"""The command line: Hydra composes the configurations, then they are handed to a job."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.configuration import explain
from experiments.configuration.compose import compose, describe_files
from experiments.configuration.schema import Config
from experiments.data.tasks_base import PACKAGE
from experiments.jobs import Job, all_jobs, find_job, spelled_out
from experiments.runs import RunFailed
from experiments.system import machine, signals
from experiments.system.paths import CONF
from experiments.system.processes import drop_output
from zoo.errors import UserError
from zoo.registry import left_out


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, and handled as Ctrl-C is."""


def main() -> int:
    """Run the command line; returns its exit status.

    0: success; 1: a run or a cell failed; 2: a mistake in the input, or a file that could not be read or written; 130,
    143, 141: ended by Ctrl-C, by SIGTERM, by a closed output pipe, as shells number them.
    """
    try:
        sys.argv[1:] = spelled_out(sys.argv[1:])
        with signals.raising(), _terminable():
            for line in [*left_out(), *left_out(PACKAGE)]:
                _notify(line)
            perform(compose(describe_jobs, _notify))
            sys.stdout.flush()  # here, where a closed pipe or a full disk is handled
    except RunFailed as error:
        return _complain(error, 1)
    except UserError as error:
        return _complain(error, 2)
    except (HydraException, OmegaConfBaseException) as error:
        return _complain(explain.explain(error), 2)
    except BrokenPipeError:  # `| head` has read enough
        drop_output()
        return 141
    except OSError as error:
        drop_output()
        return _complain(machine.explain(error), 2)
    except KeyboardInterrupt as stop:
        return _complain(signals.INTERRUPTED, 143 if isinstance(stop, Terminated) else signals.STATUS)
    return 0


def perform(configs: list[Config]) -> None:
    """Run the job of every configuration; all cells of a sweep together where the job has `run_sweep`."""
    jobs = {config.job: find_job(config.job) for config in configs}
    for config in configs:
        _refuse_unread(config, jobs[config.job])
    together = next(iter(jobs.values())).run_sweep if len(jobs) == 1 and len(configs) > 1 else None
    if together is not None:
        together(configs)
        return
    _refuse_overwriting(configs, jobs)
    for config in configs:
        jobs[config.job].run(config)


def _refuse_unread(config: Config, job: Job) -> None:
    """Refuse run=, runs= and dry= for a job that does not read them: it would do something else. Raises UserError."""
    places = [key for key in job.reads if key != "dry"]
    for key in ("run", "runs", "dry"):
        if key in config.given and key not in job.reads:
            instead = f"give {places[0]}=..." if places and key != "dry" else "leave it out"
            raise UserError(f"job={job.name} does not read {key}=; {instead}")


def _refuse_overwriting(configs: list[Config], jobs: Mapping[str, Job]) -> None:
    """Refuse a sweep of which the last results alone would stay. Raises UserError."""
    places = [
        (config.job, place) for config in configs if (place := jobs[config.job].place(config)) is not None
    ]
    for job, place in places:
        if places.count((job, place)) > 1:
            raise UserError(
                f"every cell of this sweep would overwrite {place}, so only the last results of job={job} would "
                "remain; run one command per value"
            )


def describe_jobs() -> str:
    """The lines of --help about jobs: name and description, and below them the keys that a job needs."""
    lines = []
    for job in all_jobs():
        lines.append(f"  {job.name:<9} {job.help}")
        lines += [f"  {'':<9} needs {job.needs}"] if job.needs else []
    return "\n".join(lines)


def help_text() -> str:
    """What --help prints: the template in conf/config.yaml, with the jobs."""
    OmegaConf.register_new_resolver("describe_jobs", describe_jobs, replace=True)
    OmegaConf.register_new_resolver("describe_files", describe_files, replace=True)
    return f"{OmegaConf.load(CONF / 'config.yaml').hydra.help.template}\n"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """While inside, SIGTERM raises Terminated."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _notify(text: str) -> None:
    print(f"notice: {machine.one_line(text)}", file=sys.stderr, flush=True)


def _complain(error: object, status: int) -> int:
    print(f"error: {machine.one_line(error)}", file=sys.stderr)
    return status
