"""job=probe: probe finished runs; tables for the figures go into RUN/probes/."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.planning.plan import check_measures, check_probe
from experiments.probing.probe_run import (
    FOLDER,
    find_runs,
    is_probed,
    notices_of_probed,
    probe_run,
    run_title,
    stream_rank,
)
from experiments.runs import FAILURE, RunFailed, RunFolder
from experiments.system import signals
from experiments.system.processes import Bar
from zoo.errors import UserError


def run(config: Config) -> None:
    """Probe every complete run that was not probed in this way before. Raises RunFailed at the end if one could not be.

    Folders without a complete run are named and left alone.
    """
    check_probe(config.probe)
    check_measures()
    pick_device(config.device)
    runs, skipped = find_runs(config)
    for why in skipped:
        print(f"skipped {why}")
    todo = [run for run in runs if not is_probed(run, config.probe)]
    print(
        f"{len(runs)} complete runs: {len(runs) - len(todo)} probed before, {len(todo)} to probe", flush=True
    )
    bar, failed = Bar("probe", config.trainer.progress), 0
    bar("runs", 0, len(todo))
    try:
        for done, (run, problem, made) in enumerate(_attempts(todo, config), start=1):
            failed += bool(problem)
            line = f"FAILED: {problem}" if problem else ", ".join(made)
            tqdm.write(f"[{done}/{len(todo)}] {run_title(run)}: {line}", file=sys.stdout)
            bar("runs", done, len(todo))
    finally:
        bar.close()
    for run in runs:
        if line := stream_rank(run, config.probe.stream_energy):
            print(f"{run_title(run)}: {line}")
        for line in notices_of_probed(run):
            print(f"notice: {run_title(run)}: {line}", file=sys.stderr, flush=True)
    if failed:
        raise RunFailed(
            f"{failed} of {len(runs)} runs could not be probed; the same command tries them again"
        )


Attempt = tuple[Path, str, list[str]]


def _attempts(runs: list[Path], config: Config) -> Iterator[Attempt]:
    """Every run's problem (or "") and tables, as they end; sweep.workers at a time."""
    workers = min(config.sweep.workers, len(runs))
    if workers < 2:
        yield from (_attempt(run, config) for run in runs)
        return
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(config.trainer.threads)  # before the workers import torch
    pool = ProcessPoolExecutor(workers, mp.get_context("spawn"))
    try:
        with signals.blocked():
            waiting = {pool.submit(_attempt, run, config): run for run in runs}
        for future in as_completed(waiting):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield waiting[future], "a worker was killed", []
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(run: Path, config: Config) -> Attempt:
    """Probe a run; a failure is recorded in its folder probes/ and returned in one line."""
    inside = RunFolder(run / FOLDER)
    try:
        made = probe_run(run, config)
    except UserError as error:
        return run, str(error), []
    except Exception as error:
        with contextlib.suppress(OSError):  # the place may be why it failed
            inside.path.mkdir(exist_ok=True)
        inside.fail(error)
        record = f" (see {inside.path / FAILURE})" if inside.failed else ""
        return run, f"{type(error).__name__}: {error}{record}", []
    (inside.path / FAILURE).unlink(missing_ok=True)
    return run, "", made


JOB = Job(
    "probe",
    "measure what finished runs do inside; tables go to RUN/probes",
    run,
    reads=("run", "runs"),
    needs="runs=results/NAME or run=results/NAME/RUN",
    place=lambda config: config.run or config.runs,
)
