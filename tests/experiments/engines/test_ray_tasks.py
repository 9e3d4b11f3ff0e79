"""What `sweep.engine=ray` asks of a cluster, and what it says of cells, with a pretended one; Ray is not needed."""

import dataclasses
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.program import write_text
from support.steady import changed, forget_texts, tiny_config

from experiments.configuration.schema import RayConfig
from experiments.engines import ray_engine
from experiments.engines.engine import State, record_path
from experiments.engines.supervisor import RUNNING, WAITING
from experiments.planning.plan import Plan, plan
from zoo.errors import UserError


class _Lost(Exception):
    """What Ray raises where an actor is gone."""


class _Supervisor:
    """A pretended owner of tasks: every method is an actor's, and what it is asked is written down."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple]] = []
        self.answers: dict[str, Any] = {"submit": True, "cancel": True, "leave": None, "states": {}}

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.asked.append((method, arguments))
            return self.answers[method]

        return SimpleNamespace(remote=remote)


class _Ray:
    """A pretended module `ray`, connected to a cluster of one node with these processors."""

    def __init__(self, cpus: float) -> None:
        self.cpus, self.shut_down = cpus, 0
        self.exceptions = SimpleNamespace(RayActorError=_Lost, RayError=_Lost)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cpus, "GPU": 1.0}}]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def get(self, answer: Any) -> Any:
        if answer is _Lost:
            raise _Lost
        return answer

    def shutdown(self) -> None:
        self.shut_down += 1


@pytest.fixture
def plans(tmp_path: Path, monkeypatch) -> list[Plan]:
    monkeypatch.setenv("ARCHZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_texts()
    write_text(tmp_path / "book.txt", 30)
    config = tiny_config(data__name="text", data__path="book.txt", results="results", name="study")
    return [plan(changed(config, seed=seed)) for seed in range(6)]


def connected(
    monkeypatch, plans: list[Plan], cpus: float = 8.0, **sweep: Any
) -> tuple[ray_engine.RayTasks, _Ray, list[_Supervisor]]:
    """The engine with these keys of sweep, its pretended cluster and the owners of tasks that it has started."""
    keys = {f"sweep__{key}": value for key, value in sweep.items()}
    first = dataclasses.replace(plans[0], config=changed(plans[0].config, **keys))
    ray, supervisors = _Ray(cpus), []

    def made(engine: ray_engine.RayTasks, folder: Path) -> _Supervisor:
        supervisors.append(_Supervisor())
        return supervisors[-1]

    monkeypatch.setattr(ray_engine, "connect", lambda settings: ray)
    monkeypatch.setattr(ray_engine.RayTasks, "_supervisor", made)
    monkeypatch.setattr(ray_engine.time, "sleep", lambda seconds: None)
    return ray_engine.RayTasks([first, *plans[1:]]), ray, supervisors


def record(planned: Plan) -> str:
    return str(record_path(planned).absolute())


@pytest.mark.parametrize(
    ("cpus", "takes", "at_once"), [(8.0, 2.0, 4), (8.0, 1.0, 6), (8.0, 0.5, 6), (1.5, 1.5, 1)]
)
def test_a_task_is_asked_for_what_its_cell_takes(plans, tmp_path, monkeypatch, cpus, takes, at_once):
    """It is told how many train beside it: no more than there are cells, nor than the cluster has room for."""
    engine, _, (supervisor,) = connected(
        monkeypatch, plans, cpus, ray__cpus=takes, ray__gpus=0.5, retries=7, ray__poll_s=90.0
    )
    engine.submit(plans[1])
    (asked,) = supervisor.asked
    method, ((_, seconds), cell, arguments, options) = asked
    assert (method, cell) == ("submit", record(plans[1]))
    assert arguments == (at_once, str(tmp_path), plans[1].config.trainer.threads)
    assert options == {
        "num_cpus": takes,
        "num_gpus": 0.5,
        "max_retries": 7,
        "name": f"study/{plans[1].run}",
    }
    assert seconds == 900.0, "a command that looks every 90 s is not taken for one that is gone"


def test_states_of_cells_are_those_that_their_owner_tells(plans: list[Plan], monkeypatch):
    engine, _, (supervisor,) = connected(monkeypatch, plans)
    for planned in plans[:4]:
        engine.submit(planned)
    supervisor.answers["states"] = {
        record(plans[0]): WAITING,
        record(plans[1]): RUNNING,
        record(plans[2]): (1, "it failed"),
    }
    assert engine.changed() == plans[:4]
    assert [engine.state(planned) for planned in plans[:4]] == [
        State(WAITING),
        State("running"),
        State(ended=True, status=1, why="it failed"),
        State(ended=True, lost=True, why="the node that owned the sweep's tasks vanished"),
    ]
    assert engine.cancel(plans[0])
    assert supervisor.asked[-1] == ("cancel", (record(plans[0]),))


def test_a_command_that_only_submits_says_what_was_there_before_and_looks_no_more(plans, monkeypatch):
    engine, ray, (supervisor,) = connected(monkeypatch, plans, action="submit")
    engine.submit(plans[0])
    supervisor.answers["submit"] = False
    engine.submit(plans[1])
    assert engine.changed() == plans[:2]
    assert [engine.state(planned).why for planned in plans[:2]] == ["submitted", "submitted before"]
    engine.close()
    assert [method for method, _ in supervisor.asked] == ["submit", "submit", "leave"]
    assert ray.shut_down == 1


def test_an_owner_of_tasks_that_is_gone_is_followed_by_another(plans: list[Plan], monkeypatch):
    engine, _, supervisors = connected(monkeypatch, plans)
    supervisors[0].answers["submit"] = _Lost
    engine.submit(plans[0])
    assert [len(supervisor.asked) for supervisor in supervisors] == [1, 1]
    monkeypatch.setattr(engine.ray, "get", lambda answer: (_ for _ in ()).throw(_Lost))
    with pytest.raises(UserError, match="keeps losing its actors; check it with `ray status`"):
        engine.submit(plans[1])


def test_a_cell_that_no_node_holds_is_refused_and_the_command_lets_go_of_the_cluster(plans, monkeypatch):
    """Not where cells are only cancelled: nodes may have left since they were submitted."""
    closed: list[str] = []
    monkeypatch.setattr(_Ray, "shutdown", lambda ray: closed.append("closed"))
    with pytest.raises(UserError, match=r"give sweep\.ray\.grows=true"):
        connected(monkeypatch, plans, ray__cpus=9.0)
    assert closed == ["closed"]
    engine, _, _ = connected(monkeypatch, plans, ray__cpus=9.0, action="cancel")
    assert engine.cancel(plans[0])


@pytest.mark.parametrize("there", [True, False])
def test_a_command_that_is_told_to_end_hears_it_also_when_it_is_connected(monkeypatch, there: bool):
    """Ray puts a handler of its own in place."""

    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not there:
            raise ConnectionError("nobody answers. Look again")

    ray = SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.job_config", SimpleNamespace(JobConfig=lambda **options: options))
    before = signal.getsignal(signal.SIGTERM)
    try:
        if there:
            assert ray_engine.connect(RayConfig()) is ray
        else:
            with pytest.raises(UserError, match=r"\(nobody answers\); start one"):
                ray_engine.connect(RayConfig())
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_experiment_has_one_owner_of_tasks_which_stays_on_the_head_node_and_takes_no_processor(
    plans: list[Plan], tmp_path: Path, monkeypatch
):
    """Every command finds it by its name; it outlives them."""
    asked: list[Any] = []
    kept: Any = SimpleNamespace(
        options=lambda **given: asked.append(given) or kept, remote=lambda: "the actor"
    )
    ray = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}],
        remote=lambda cls: asked.append(cls) or kept,
    )
    monkeypatch.setattr(ray_engine, "connect", lambda settings: ray)
    monkeypatch.setitem(
        sys.modules, "experiments.engines.ray_cell", SimpleNamespace(RaySupervisor="its class")
    )
    engine = ray_engine.RayTasks(plans)
    assert engine.supervisors == {tmp_path / "results/study": "the actor"}
    assert asked == [
        "its class",
        {
            "name": f"cells of {tmp_path / 'results/study'}",
            "lifetime": "detached",
            "get_if_exists": True,
            "num_cpus": 0,
            "resources": {"node:__internal_head__": 0.001},
        },
    ]


def test_a_command_looks_at_once_and_then_every_poll_s_seconds(plans: list[Plan], monkeypatch):
    """And lets go of the cluster when it ends, though an owner is gone by then."""
    engine, ray, (supervisor,) = connected(monkeypatch, plans, ray__poll_s=7.0)
    slept: list[float] = []
    monkeypatch.setattr(ray_engine.time, "sleep", slept.append)
    for _ in range(3):
        engine.changed()
    assert slept == [7.0, 7.0]
    lease = engine.lease
    supervisor.answers["leave"] = _Lost
    engine.close()
    assert supervisor.asked == [("states", (lease,))] * 3 + [("leave", (lease[0],))]
    assert ray.shut_down == 1
