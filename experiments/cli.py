"""The command line: Hydra composes the configurations, then they are handed to a job."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hydra
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import hydra_errors, interrupts, schema
from experiments.jobs import JOBS
from experiments.runs import RunFailed
from zoo.errors import UserError, unknown

Job = Callable[[schema.Config], None]
CONF = Path(__file__).resolve().parent.parent / "conf"


class Terminated(KeyboardInterrupt):
    """SIGTERM: somebody wants this to end, as politely as with Ctrl-C."""


def main(**more_jobs: Job) -> int:
    """Run the command line; returns the exit status: 0 fine, 1 a run or cell failed, 2 a mistake in the input, or the
    system would not read or write a file.

    130 and 143 are what shells know for Ctrl-C and SIGTERM.

    more_jobs: jobs that live outside this package (the report).
    """
    try:
        with interrupts.raising(), _terminable():
            perform(compose(), {**JOBS, **more_jobs})
            sys.stdout.flush()  # here, where it is told that nobody reads any more, or that the disk is full
    except RunFailed as error:
        return _complain(error, 1)
    except UserError as error:
        return _complain(error, 2)
    except (HydraException, OmegaConfBaseException) as error:
        return _complain(hydra_errors.explain(error), 2)
    except BrokenPipeError:  # `| head` has read enough
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        return _complain(hydra_errors.of_system(error), 2)
    except KeyboardInterrupt as stop:
        return _complain(interrupts.INTERRUPTED, 143 if isinstance(stop, Terminated) else interrupts.STATUS)
    return 0


def compose() -> list[schema.Config]:
    """The configurations that the command line asks for: one, or all cells of a sweep. Runs nothing.

    Hydra's own sweeper composes the cells, each into a function that only collects them, so that a mistake in the
    last cell is found before the first one runs.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting by itself
    # Hydra composes every cell once more beforehand, lest a bad one shows late; here none runs before all are there.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    schema.register()
    composed: list[DictConfig] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def collect(node: DictConfig) -> None:
        composed.append(node)  # nothing that can fail, or Hydra would print about it

    with tempfile.TemporaryDirectory() as folder, _unchecked_help():
        os.environ["ARCHZOO_SWEEP_FOLDER"] = folder
        collect()
    typed = OmegaConf.structured(schema.Config)
    return [to_config(node, typed) for node in composed]


@contextlib.contextmanager
def _unchecked_help() -> Iterator[None]:
    """While inside, argparse does not look at help texts before they are shown.

    From Python 3.14 on it does when an argument is added. Hydra 1.3 adds one whose help is made when it is shown
    and is no string until then, and every command would stop at that.
    """
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:
        yield
        return
    argparse.ArgumentParser._check_help = lambda *_: None
    try:
        yield
    finally:
        argparse.ArgumentParser._check_help = check


def perform(configs: list[schema.Config], jobs: dict[str, Job]) -> None:
    """Hand the configurations to their job; those of a sweep together, where the job knows how."""
    for config in configs:
        if config.job not in jobs:
            raise unknown("job", config.job, jobs)
    together = _SWEPT.get(configs[0].job) if len({config.job for config in configs}) == 1 else None
    if len(configs) > 1 and together:
        together(configs)
    else:
        for config in configs:
            jobs[config.job](config)


def _train_cells(configs: list[schema.Config]) -> None:
    with interrupts.leaving():
        from experiments.sweep import run_cells

    run_cells(configs)


def _compare_costs(configs: list[schema.Config]) -> None:
    from experiments.jobs.cost import compare

    compare(configs)


# What a sweep of a job does, where that is more than the job for one configuration after the other.
_SWEPT = {"train": _train_cells, "cost": _compare_costs}


def to_config(node: DictConfig, typed: DictConfig | None = None) -> schema.Config:
    """The typed configuration of a composed node. Raises ConfigKeyError for keys added with a plus.

    typed: `OmegaConf.structured(Config)`, where many nodes are converted: making it takes longer than the rest.
    """
    values = OmegaConf.to_container(node, resolve=True)
    if typed is None:
        typed = OmegaConf.structured(schema.Config)
    return OmegaConf.to_object(OmegaConf.merge(typed, values))  # type: ignore[return-value]


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


def _drop_output() -> None:
    """What cannot be written any more is given up, or the interpreter complains of it again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _complain(error: object, status: int) -> int:
    print(f"error: {hydra_errors.plain(error)}", file=sys.stderr)
    return status
