"""Ctrl-C while modules are loading, and while worker processes are: one line, from nobody but the command itself."""

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.program import Lab, Outcome

from experiments.system import signals

# A module that takes long to load, and swallows what is raised in it as some do.
SLOW = """
import pathlib, time
pathlib.Path({marker!r}).touch()
for _ in range(600):
    try:
        time.sleep(0.1)
    except BaseException:
        pass
raise SystemExit("nobody ended it")
"""

# The same in processes that others start, at their very beginning.
SLOW_WORKERS = """
import pathlib, sys, time
if any(word in " ".join(sys.orig_argv) for word in {words!r}):
    pathlib.Path({marker!r}).touch()
    time.sleep(2)
"""


def interrupted(lab: Lab, marker: Path, modules: Path, monkeypatch, *words: str) -> Outcome:
    """The outcome of a command that gets Ctrl-C, as a terminal sends it, when the marker is there."""
    monkeypatch.setenv("PYTHONPATH", str(modules))
    process = lab.start(*words)
    deadline = time.monotonic() + 300
    while not marker.exists():
        assert process.running, process.err.read_text()
        assert time.monotonic() < deadline, "it never came that far"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(300)


def assert_one_line(outcome: Outcome) -> None:
    assert outcome.status == 130, outcome
    # but for progress bars, and what was read of a text before
    said = [
        line for line in outcome.err.splitlines() if line and "%|" not in line and "notice: data." not in line
    ]
    assert said == [f"error: {signals.INTERRUPTED}"], outcome


@pytest.mark.parametrize(
    ("module", "job"),
    [
        ("torch", "list"),
        pytest.param("lightning", "train", marks=pytest.mark.slow),
        pytest.param("matplotlib", "report", marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_ctrl_c_while_a_module_loads(lab: Lab, tmp_path: Path, monkeypatch, module: str, job: str):
    modules, marker = tmp_path / "modules", tmp_path / "marker"
    modules.mkdir()
    (modules / f"{module}.py").write_text(SLOW.format(marker=str(marker)))
    assert_one_line(interrupted(lab, marker, modules, monkeypatch, f"job={job}"))
    assert not list(lab.results.rglob("failure.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=pytest.mark.long) for job in ("train", "report", "probe")]
)
def test_ctrl_c_while_workers_start(lab: Lab, finished: Lab, tmp_path: Path, monkeypatch, job: str):
    modules, marker = tmp_path / "modules", tmp_path / "marker"
    modules.mkdir()
    words = ["spawn_main", "multiprocessing.forkserver"]
    (modules / "sitecustomize.py").write_text(SLOW_WORKERS.format(words=words, marker=str(marker)))
    shutil.copytree(finished.results, lab.results)
    run = lab.run_folder()
    shutil.copytree(run, run.parent / "another")
    command = {
        "report": ["job=report"],
        "probe": ["job=probe", f"runs={run.parent}"],
        "train": ["--multirun", "seed=1,2", "trainer.max_steps=100000"],
    }[job]
    assert_one_line(interrupted(lab, marker, modules, monkeypatch, "sweep.workers=2", *command))
    assert not list(lab.results.rglob("failure.json"))
    assert_nobody_is_left(lab)


def assert_nobody_is_left(lab: Lab) -> None:
    """No process of the command's is there any more, soon after it has ended."""
    deadline = time.monotonic() + 300
    while left := [p.info for p in psutil.process_iter(["pid", "cwd"]) if p.info["cwd"] == str(lab.cwd)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def test_who_ignores_ctrl_c_goes_on_ignoring_it(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.loading():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with signals.raising():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with signals.loading():
            assert signal.getsignal(signal.SIGINT) is signals._exit
            with signals.raising():
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
