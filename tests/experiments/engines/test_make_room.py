"""A cell that is told to make room: within a step, or where none will end, while it is scored or waits for its run."""

import itertools
import os
import signal
from typing import Any

import pytest
from support.held_lock import held_elsewhere
from support.program import Lab

from experiments.configuration.schema import RayConfig
from experiments.engines import supervisor
from experiments.engines.engine import FAILED, PAUSED, stops_when_signalled
from experiments.engines.preloaded_worker import Ended
from experiments.engines.ray_engine import refuse_what_no_node_has
from experiments.engines.supervisor import RUNNING, WAITING, Supervisor
from experiments.planning.plan import plan
from experiments.runs import LOCK, RunPaused
from experiments.system import signals
from experiments.system.processes import discard
from experiments.training.execute import execute, take_part
from experiments.training.lightning_modules import LanguageModelling
from zoo.errors import UserError


def test_scoring_ends_with_a_pause_and_training_is_left_to_its_steps(monkeypatch):
    heard, told = [], []
    monkeypatch.setattr(signals, "_received", told)
    report = stops_when_signalled(lambda *message: heard.append(message[0]), "kda seed 1")
    report("test", 1, 2)
    told.append(signal.SIGUSR2)
    report("train", 1, 2)
    with pytest.raises(RunPaused, match=r"kda seed 1: .* while scoring test; the same command resumes it"):
        report("test", 2, 2)
    assert heard == ["test", "train", "test"]


def test_a_cell_that_is_told_within_a_step_ends_the_step_and_saves_it(lab: Lab, monkeypatch):
    (config,) = lab.compose("trainer.accumulate=2", "trainer.max_steps=10")
    planned, compute, calls = plan(config), LanguageModelling.training_step, []

    def told_in_the_third_step(task, batch, index):
        calls.append(index)
        if len(calls) == 5:  # the first of its two micro-batches
            os.kill(os.getpid(), signal.SIGTERM)
        return compute(task, batch, index)

    monkeypatch.setattr(signals, "_received", [])
    monkeypatch.setattr(LanguageModelling, "training_step", told_in_the_third_step)
    before = signal.getsignal(signal.SIGTERM)
    signals.pause_on(signal.SIGTERM)
    heeded = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(RunPaused, match=r"stopped by SIGTERM at step 3 of 10"):
            execute(planned, discard, 1)
        assert signal.getsignal(signal.SIGTERM) is heeded
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [path.name for path in planned.folder.checkpoints.iterdir()] == ["step-00000003.ckpt"]


@pytest.mark.parametrize("train", [execute, take_part])
def test_a_cell_that_waits_for_its_run_pauses_and_nothing_is_recorded_as_a_failure(lab, monkeypatch, train):
    (config,) = lab.compose()
    planned = plan(config)
    planned.folder.path.mkdir(parents=True)
    monkeypatch.setattr(signals, "_received", [signal.SIGTERM])
    with (
        held_elsewhere(planned.folder.path / LOCK),
        pytest.raises(RunPaused, match=r"seed 0: stopped by SIGTERM while another process holds"),
    ):
        train(planned, discard, 1)
    assert [path.name for path in planned.folder.path.iterdir()] == [LOCK]


ONE, OTHER = ("one", 60.0), ("other", 60.0)


class Kept(Supervisor):
    """A supervisor whose tasks are numbers and end when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.over: dict[int, Ended] = {}
        self.killed: list[int] = []
        self.gone = False

    def _start(self, record: str, arguments: Any, options: Any) -> int:
        return next(self.numbers)

    def _ended(self, tasks: dict[str, int]) -> dict[str, Ended]:
        return {record: self.over[task] for record, task in tasks.items() if task in self.over}

    def _kill(self, task: int) -> None:
        self.killed.append(task)

    def _end(self) -> None:
        self.gone = True

    def send(self, lease: supervisor.Lease, record: str) -> bool:
        return self.submit(lease, record, (), {})


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_task_waits_until_it_says_that_it_has_begun_and_is_not_started_twice(kept: Kept):
    assert kept.send(ONE, "cell")
    assert kept.states(ONE) == {"cell": WAITING}
    kept.begin("cell")
    assert not kept.send(OTHER, "cell"), "the task of another command is picked up"
    assert kept.states(OTHER) == {"cell": RUNNING}
    assert kept.tasks == {"cell": 0}


def test_an_outcome_that_nobody_was_told_does_not_keep_a_cell_from_being_submitted(kept: Kept):
    for task, outcome in enumerate([(PAUSED, "paused at step 3"), (FAILED, "not finite")]):
        assert kept.send(ONE, "cell"), "a task that ended is none to pick up"
        kept.begin("cell")
        assert kept.tasks == {"cell": task}
        kept.over[task] = outcome
    assert kept.send(ONE, "cell")
    assert kept.states(ONE) == {"cell": WAITING}, "what the tasks before said is no outcome of this one"


def test_every_command_that_waits_is_told_an_outcome(kept: Kept):
    kept.send(ONE, "cell")
    assert not kept.send(OTHER, "cell")
    kept.over[0] = (FAILED, "not finite")
    for command in (ONE, OTHER, ONE):
        assert kept.states(command) == {"cell": (FAILED, "not finite")}
    kept.leave("one")
    assert not kept.gone
    assert kept.states(OTHER) == {"cell": (FAILED, "not finite")}
    kept.leave("other")
    assert kept.gone


def test_a_command_that_waits_is_told_that_another_one_cancelled_the_cell(kept: Kept):
    kept.send(ONE, "cell")
    assert kept.cancel("cell")
    assert kept.killed == [0]
    kept.leave("the one that cancelled")
    assert not kept.gone
    assert kept.states(ONE) == {"cell": (None, "cancelled")}
    assert not kept.cancel("cell")
    assert kept.send(ONE, "cell"), "the same command resumes it"


def test_a_cell_that_has_ended_cannot_be_cancelled(kept: Kept):
    kept.send(ONE, "cell")
    kept.over[0] = (FAILED, "not finite")
    assert not kept.cancel("cell")
    assert kept.states(ONE) == {"cell": (FAILED, "not finite")}


def test_it_stays_for_tasks_and_for_a_killed_command_only_so_long(kept: Kept, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    kept.send(ONE, "cell")
    now[0] = 61.0
    kept.end_unless_needed()
    assert not kept.gone, "a task is left"
    kept.states(OTHER)
    kept.over[0] = (FAILED, "not finite")
    kept.end_unless_needed()
    assert not kept.gone, "a command is to be told"
    now[0] = 122.0
    kept.end_unless_needed()
    assert kept.gone


def node(cpus: float, gpus: float | None = None, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus} | ({} if gpus is None else {"GPU": gpus})}


def test_what_no_node_has_is_refused():
    nodes = [node(4.0), node(2.0, 1.0), node(64.0, 8.0, alive=False)]
    for fits in ((4.0, 0.0), (2.0, 1.0), (0.5, 0.25)):
        refuse_what_no_node_has(nodes, RayConfig(cpus=fits[0], gpus=fits[1]))
    for more in ((5.0, 0.0), (4.0, 1.0), (1.0, 2.0)):
        with pytest.raises(
            UserError, match=r"have 4 CPUs and 0 GPUs, 2 CPUs and 1 GPUs; .*sweep.ray.grows=true"
        ):
            refuse_what_no_node_has(nodes, RayConfig(cpus=more[0], gpus=more[1]))
        refuse_what_no_node_has(nodes, RayConfig(cpus=more[0], gpus=more[1], grows=True))
