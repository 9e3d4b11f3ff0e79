"""Cells in processes of this machine: what they say of themselves, how they end, and with whom."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.steady import changed, tiny_config

from experiments.configuration.schema import Config
from experiments.engines import engine, pool, preloaded_worker
from experiments.engines.engine import FAILED, PAUSED, State
from experiments.engines.pool import Pool
from experiments.engines.preloaded_worker import PreloadedWorker
from experiments.runs import RunPaused
from experiments.system.paths import ROOT
from experiments.system.torchrun import PARENT
from experiments.training.execute import _environment


class _Process:
    """A pretended process, which ends with this status when it is told to."""

    exitcode: int | None = None

    def __init__(self, target, args, daemon) -> None:
        self.target, self.args, self.daemon, self.asked = target, args, daemon, []

    def start(self) -> None:
        self.asked.append("start")

    def terminate(self) -> None:
        self.asked.append("terminate")

    def join(self) -> None:
        self.asked.append("join")


@pytest.fixture
def made(monkeypatch):
    """`made(n, **keys)`: a pool of n cells, and them; its processes are pretended, its pipes real."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(pool.forkserver, "ensure_running", lambda: None)

    def build(count: int, **keys) -> tuple[Pool, list[SimpleNamespace]]:
        config = tiny_config(**keys)
        plans = [
            SimpleNamespace(run=f"run {i}", config=changed(config, trainer__threads=1 + i))
            for i in range(count)
        ]
        engine = Pool(plans)
        pipe = engine.context.Pipe
        engine.context = SimpleNamespace(Process=_Process, Pipe=pipe)
        return engine, plans

    return build


@pytest.mark.parametrize(("workers", "cells", "at_once"), [(2, 3, 2), (5, 3, 3), (1, 3, 1)])
def test_as_many_cells_train_at_a_time_as_asked_for_or_as_there_are(made, workers, cells, at_once):
    """Each is told of it, for its share of the processor's peak; all have the threads of the largest."""
    engine, plans = made(cells, sweep__workers=workers)
    assert engine.capacity == at_once
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == str(cells)
    engine.submit(plans[0])
    process, _ = engine.running["run 0"]
    assert (process.target, process.args[0], process.args[2]) == (pool._work, plans[0], at_once)
    assert process.daemon, "it ends with the command"


def test_a_cell_is_starting_until_it_says_how_far_it_is(made, monkeypatch):
    engine, (planned, other) = made(2)
    ends = []
    pipe = engine.context.Pipe
    engine.context.Pipe = lambda: ends.append(pipe()) or (ends[-1][0], SimpleNamespace(close=lambda: None))
    engine.submit(planned)
    engine.submit(other)
    there = ends[0][1]
    assert there.recv() == "go", "it waits for this, so that an interrupted sweep trains nothing"
    assert engine.state(planned) == State("starting")
    there.send(("train", 3, 12, "loss 2.5"))
    assert engine.changed() == [planned]
    assert engine.state(planned) == State("train 3/12 loss 2.5", 0.25)
    assert engine.state(planned) == State("train 3/12 loss 2.5", 0.25), "until it says more"
    there.send(("prepare", 0, 0, ""))
    assert engine.state(planned) == State("prepare 0/0 ", 0.0)
    process, _ = engine.running["run 0"]
    process.exitcode = -9
    there.close()
    assert engine.changed() == [planned]
    ended = engine.state(planned)
    assert (ended.ended, ended.status, ended.why) == (True, -9, "killed by signal 9")
    assert process.asked == ["start", "join"]
    assert list(engine.running) == ["run 1"]
    assert list(engine.plans.values()) == [other]


def test_only_cells_of_this_command_are_cancelled_and_all_end_with_it(made):
    engine, (planned, other, unknown) = made(3)
    engine.submit(planned)
    engine.submit(other)
    assert engine.cancel(planned)
    assert not engine.cancel(unknown)
    processes = [engine.running[run][0] for run in ("run 0", "run 1")]
    assert [process.asked for process in processes] == [["start", "terminate"], ["start"]]
    engine.close()
    assert [process.asked.count("terminate") for process in processes] == [2, 1]


@pytest.fixture
def cell(monkeypatch):
    """A cell as its own process has it: its plan, both ends of its pipe, and the signals that it heeds."""
    heeded: dict[int, object] = {}
    monkeypatch.setattr(pool.signal, "signal", heeded.__setitem__)
    here, there = pool.mp.Pipe()
    return SimpleNamespace(
        planned=SimpleNamespace(config=tiny_config(trainer__progress=True)),
        here=here,
        there=there,
        heeded=heeded,
    )


def test_a_cell_trains_when_it_is_told_to_draws_no_bar_and_sends_its_progress(cell, monkeypatch):
    def execute(planned, sink, workers):
        assert not planned.config.trainer.progress
        sink("train", 1, 2, f"{workers} at once")

    monkeypatch.setattr(pool, "execute", execute)
    monkeypatch.setattr(pool, "ThrottledSender", lambda send: lambda *message: send(message))
    cell.here.send("go")
    pool._work(cell.planned, cell.there, 4)
    assert cell.here.recv() == ("train", 1, 2, "4 at once")
    assert cell.heeded[signal.SIGINT] == signal.SIG_IGN, "Ctrl-C in a terminal is the sweep's to decide on"


def test_a_cell_finishes_though_its_sweep_is_gone_but_does_not_begin(cell, monkeypatch):
    ended = []

    def execute(planned, sink, workers):
        cell.here.close()
        sink("train", 1, 2, "")
        ended.append("finished")

    monkeypatch.setattr(pool, "execute", execute)
    monkeypatch.setattr(pool, "ThrottledSender", lambda send: lambda *message: send(message))
    cell.here.send("go")
    pool._work(cell.planned, cell.there, 1)
    assert ended == ["finished"]
    pool._work(cell.planned, cell.there, 1)
    assert ended == ["finished"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(RunPaused("paused"), PAUSED, ""), (ValueError("a shape"), FAILED, "error: a shape\n")],
)
def test_a_cell_ends_with_a_status_of_its_own(cell, monkeypatch, capsys, error, status: int, said: str):
    def execute(*_):
        raise error

    monkeypatch.setattr(pool, "execute", execute)
    cell.here.send("go")
    with pytest.raises(SystemExit) as end:
        pool._work(cell.planned, cell.there, 1)
    assert (end.value.code, capsys.readouterr().err) == (status, said)


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
    return subprocess.run([sys.executable, *words], env=found, capture_output=True, text=True, timeout=300)


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
