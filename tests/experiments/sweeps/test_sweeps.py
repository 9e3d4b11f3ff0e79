"""Sweeps that are killed, that lose a worker, that run twice at once, or that somebody stops."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.program import Lab, Outcome, Process

from experiments.runs import RunFolder, read_metrics

pytestmark = pytest.mark.slow
CELL = ["model=transformer", "trainer.max_steps=60", "trainer.log_every=1", "trainer.val_every=30"]
Stamps = dict[Path, tuple[int, int]]


@pytest.mark.long
def test_killed_sweep_repeats_no_finished_cell(lab: Lab):
    command = ["--multirun", *CELL, "seed=0,1,2,3,4", "sweep.workers=2"]
    first, seen = lab.start(*command), {}
    _watch(lab, seen, lambda: len(seen) >= 1 or not first.running)
    first.popen.kill()  # the parent alone: its workers are left to themselves
    second = lab.start(*command)
    _watch(lab, seen, lambda: len(seen) >= 3 or not second.running)
    os.killpg(second.pid, signal.SIGKILL)
    assert first.wait().status == second.wait().status == -signal.SIGKILL
    third = lab.start(*command)
    _watch(lab, seen, lambda: not third.running)
    outcome = third.wait()
    assert outcome.status == 0, outcome.err
    assert len(seen) == 5
    assert _stamps(lab) == seen, "a finished cell was computed again"
    assert f"5 cells: {5 - outcome.out.count(': done')} complete" in outcome.out
    _assert_rows_whole(lab)
    _assert_nobody_left(first, second, third)


@pytest.mark.long
def test_a_killed_worker_and_a_diverging_cell_do_not_stop_the_others(lab: Lab):
    process = lab.start("--multirun", *CELL, "trainer.max_steps=120", "optim.lr=3e-3,1e30", "seed=0,1")
    while process.running and len(_training(lab)) < 2:
        time.sleep(0.02)
    _workers(process)[0].kill()
    outcome = process.wait()
    assert outcome.status == 1, outcome
    assert outcome.out.count("killed by signal 9") == 1, outcome.out
    assert outcome.out.count(": done: test loss") == 1, outcome.out
    assert outcome.out.count("is not finite at step 1, first in module") == 2, outcome.out
    assert "transformer seed 0 optim.lr=0.003" in outcome.out  # what tells equal titles apart
    assert "3 of 4 cells failed" in outcome.err
    assert "Traceback" not in outcome.out + outcome.err
    failed = [RunFolder(folder) for folder in lab.run_folders() if RunFolder(folder).failed]
    assert [run.failure()["kind"] for run in failed] == ["NonFinite", "NonFinite"]
    _assert_nobody_left(process)


@pytest.mark.long
def test_two_equal_sweeps_at_once_compute_each_cell_once(tmp_path: Path, small_text: Path):
    lab = Lab(tmp_path / "lab", small_text, tmp_path / "fresh_cache")  # both want to make the cache, too
    command = ["--multirun", *CELL, "seed=0,1,2", "sweep.workers=1"]
    both, seen = [lab.start(*command) for _ in range(2)], {}
    _watch(lab, seen, lambda: not any(process.running for process in both))
    outcomes = [process.wait() for process in both]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    assert len(seen) == 3
    assert _stamps(lab) == seen, "a finished cell was computed again"
    _assert_rows_whole(lab)
    _assert_nobody_left(*both)


@pytest.mark.long
def test_ctrl_c_and_sigterm_stop_politely(tmp_path: Path, small_text: Path, shared_cache: Path):
    long = [*CELL, "trainer.max_steps=100000"]
    labs = [Lab(tmp_path / name, small_text, shared_cache) for name in ("one", "cells", "term")]
    one, cells, term = labs
    single, sweep = one.start(*long), cells.start("--multirun", *long, "seed=0,1")
    terminated = term.start(*long)
    while not (_training(one) and len(_training(cells)) == 2 and _training(term)):
        assert all(process.running for process in (single, sweep, terminated)), "ended by itself"
        time.sleep(0.05)
    for process in (single, sweep):
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: everybody in the foreground gets it
    terminated.popen.terminate()
    for process, status in ((single, 130), (sweep, 130), (terminated, 143)):
        outcome = _ended(process)
        assert outcome.status == status, outcome
        assert "Traceback" not in outcome.out + outcome.err, outcome
        assert _errors(outcome) == [
            "error: interrupted; the same command resumes from the last checkpoint"
        ], outcome
        _assert_nobody_left(process)
    assert not [folder for lab in labs for folder in lab.run_folders() if RunFolder(folder).failed]


def _ended(process: Process) -> Outcome:
    """The outcome within a minute; a process that hangs says where."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.popen.wait(300)
    if process.running:
        process.popen.send_signal(signal.SIGABRT)  # Python's fault handler writes every thread's stack
    return process.wait()


def _errors(outcome: Outcome) -> list[str]:
    return [line for line in outcome.err.splitlines() if "rror" in line or "nterrupt" in line]


def _training(lab: Lab) -> list[Path]:
    """Run folders with metric rows."""
    return [path.parent for path in lab.results.glob("*/*/metrics.csv") if read_metrics(path)]


def _workers(process: Process) -> list[psutil.Process]:
    """The processes that train cells: children of the fork server, which is a child of the sweep."""
    return [worker for child in psutil.Process(process.pid).children() for worker in child.children()]


def _stamps(lab: Lab) -> Stamps:
    """Which file each cell's summary is, and when it was written."""
    found = {}
    for path in lab.results.glob("*/*/summary.json"):
        info = path.stat()
        found[path.parent] = (info.st_ino, info.st_mtime_ns)
    return found


def _watch(lab: Lab, seen: Stamps, done) -> None:
    """Until `done`, note the first summary of every cell."""
    while not done():
        time.sleep(0.05)
        seen.update({folder: stamp for folder, stamp in _stamps(lab).items() if folder not in seen})
    seen.update({folder: stamp for folder, stamp in _stamps(lab).items() if folder not in seen})


def _assert_rows_whole(lab: Lab) -> None:
    """Every step once and in order: what two processes writing to one run would spoil."""
    for folder in lab.run_folders():
        steps = [int(row["step"]) for row in read_metrics(folder / "metrics.csv") if row["split"] == "train"]
        assert steps == list(range(1, 61)), folder


def _assert_nobody_left(*processes: Process) -> None:
    sessions = {process.pid for process in processes}
    deadline = time.monotonic() + 300
    while left := [pid for pid in psutil.pids() if _session(pid) in sessions]:
        assert time.monotonic() < deadline, [psutil.Process(pid).cmdline() for pid in left]
        time.sleep(0.1)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.long
def test_a_folder_whose_sockets_have_too_long_names_is_named(lab: Lab):
    lab.temp = lab.folder / ("deep" * 30)
    lab.temp.mkdir()
    outcome = lab.run("--multirun", "seed=0,1")
    assert outcome.status == 2
    assert outcome.err.strip().endswith("is too long for sockets; set TMPDIR=/tmp")
