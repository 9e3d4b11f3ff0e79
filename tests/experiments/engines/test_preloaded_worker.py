"""Processes that end with the one that started them, however early that ends, and that say how they ended."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.configuration.schema import Config
from experiments.engines import engine, preloaded_worker
from experiments.engines.engine import PAUSED
from experiments.engines.preloaded_worker import PreloadedWorker
from experiments.system.paths import ROOT
from experiments.system.torchrun import PARENT
from experiments.training.execute import _environment

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
ENDS_AT_ONCE = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from experiments.engines.preloaded_worker import PreloadedWorker

worker = PreloadedWorker(1)
print(worker.process.pid, file=worker.process.stdin, flush=True)  # a cell in its pipe, which is no record
os._exit(0)
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python on this code, until everything that it started has ended: they hold its output."""
    found = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *words], env=found, capture_output=True, text=True, timeout=120)


@linux
def test_a_starter_of_cells_trains_none_where_its_own_starter_is_gone_already():
    outcome = python("-c", ENDS_AT_ONCE)
    assert outcome.returncode == 0, outcome
    assert outcome.stderr == "", "it read the cell"


def test_a_run_of_several_processes_tells_them_who_started_it():
    assert _environment(Config())[PARENT] == str(os.getpid())


def without(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> None:
    """Let processes that are started find this text as a module."""
    (folder / f"{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_harness_that_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch):
    without(tmp_path, monkeypatch, "lightning", "raise ImportError('no lightning on this node')")
    for _ in range(2):  # before it has read the cell, and after it has ended
        worker = PreloadedWorker(1)
        assert worker.train(tmp_path / "cell.json", 1) == (
            None,
            "the harness cannot be loaded: ImportError: no lightning on this node",
        )
        assert worker.process.wait() == 1


@pytest.mark.parametrize(
    ("end", "said"),
    [("os._exit(3)", "stopped with status 3"), ("os.kill(os.getpid(), 9)", "killed by signal 9")],
)
def test_a_starter_of_cells_that_ends_without_a_word_is_told(tmp_path, monkeypatch, end, said):
    without(tmp_path, monkeypatch, "lightning", f"import os\n{end}")
    assert PreloadedWorker(1).train(tmp_path / "cell.json", 1) == (
        None,
        f"the process that starts cells: {said}",
    )


@linux
def test_a_cell_trains_on_the_gpus_that_its_starter_sees_now(monkeypatch):
    """They may be others than those that the starter of cells saw when it began."""
    monkeypatch.setattr(
        engine,
        "train_record",
        lambda record, sink, workers: (
            PAUSED,
            f"{record} on {os.environ[preloaded_worker.GPUS]}, {workers} at once{ends}",
        ),
    )
    ends = []  # with its starter: a fork has no other one that ends it
    monkeypatch.setattr(preloaded_worker, "end_with_parent", lambda *given: ends.append(given))
    monkeypatch.setenv(preloaded_worker.GPUS, "0")
    for gpus, seen in (("2,3", "2,3"), (None, "0")):
        asked = {"record": "cell.json", "workers": 4, "gpus": gpus}
        assert preloaded_worker._in_a_fork(asked) == (
            PAUSED,
            f"cell.json on {seen}, 4 at once{[(signal.SIGKILL, os.getpid())]}",
        )


def test_a_starter_of_cells_has_their_threads_before_it_imports_anything(monkeypatch):
    started: list[dict[str, str]] = []
    monkeypatch.setattr(
        preloaded_worker.subprocess, "Popen", lambda command, env, **streams: started.append(env)
    )
    PreloadedWorker(3)
    assert [started[0][name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")] == ["3", "3"]
    assert started[0][PARENT] == str(os.getpid())


def test_a_starter_of_cells_is_told_the_gpus_of_each(monkeypatch, tmp_path: Path):
    """Ray gives the process that asks it other GPUs for every task."""
    told, answers = io.StringIO(), io.StringIO('[0, ""]\n[0, ""]\n')
    started = SimpleNamespace(stdin=told, stdout=answers)
    monkeypatch.setattr(preloaded_worker.subprocess, "Popen", lambda command, **options: started)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(preloaded_worker.GPUS, raising=False)
    starter = PreloadedWorker(1)
    assert starter.train(Path("cell.json"), 4) == (0, "")
    monkeypatch.setenv(preloaded_worker.GPUS, "2,3")
    starter.train(Path("cell.json"), 1)
    record = str(tmp_path / "cell.json")
    assert [json.loads(line) for line in told.getvalue().splitlines()] == [
        {"record": record, "workers": 4, "gpus": None},
        {"record": record, "workers": 1, "gpus": "2,3"},
    ]


@linux
def test_what_a_process_starts_is_not_told_of_its_parents_parent():
    """It would take itself for one whose parent is gone, and end."""
    words = "import os, signal; from experiments.system.torchrun import *"
    ends = "end_with_parent(signal.SIGKILL); print(os.environ.get(PARENT))"
    outcome = python("-c", f"{words}; {ends}", **{PARENT: str(os.getpid())})
    assert (outcome.returncode, outcome.stdout) == (0, "None\n"), outcome
