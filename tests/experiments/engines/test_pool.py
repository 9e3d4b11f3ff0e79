"""Cells in processes of this machine: what they say of themselves, how they end, and how they are ended."""

import os
import signal
from types import SimpleNamespace

import pytest
from support.steady import changed, tiny_config

from experiments.engines import pool
from experiments.engines.engine import FAILED, PAUSED, State
from experiments.engines.pool import Pool
from experiments.runs import RunPaused


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
