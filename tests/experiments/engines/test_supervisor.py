"""The owner of a sweep's tasks: what it starts, whom it tells what, and when it ends.

Tasks are stand-ins here; real ones are in test_ray_cluster.py.
"""

import itertools
from typing import Any

import pytest

from experiments.configuration.schema import RayConfig
from experiments.engines import supervisor
from experiments.engines.engine import FAILED, PAUSED
from experiments.engines.preloaded_worker import Ended
from experiments.engines.ray_engine import refuse_what_no_node_has
from experiments.engines.supervisor import RUNNING, WAITING, Supervisor
from zoo.errors import UserError

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
