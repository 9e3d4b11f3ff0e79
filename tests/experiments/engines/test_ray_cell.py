"""The task that trains a cell on a node of Ray's, with a pretended process that starts cells; Ray is not needed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from experiments.system.paths import ROOT

SUPERVISOR = SimpleNamespace(begin=SimpleNamespace(remote=lambda record: None))


class _Worker:
    started: list["_Worker"]

    def __init__(self, threads: int) -> None:
        self.threads, self.alive = threads, True
        self.started.append(self)

    def train(self, record: Path, workers: int) -> tuple[int | None, str]:
        self.alive = record.name != "killed"
        return (0, f"{self.threads} threads") if self.alive else (None, "killed by signal 9")


@pytest.fixture
def ray_cell(monkeypatch, tmp_path: Path) -> ModuleType:
    """The module, which nothing else sees: ray may not be installed."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    spec = importlib.util.spec_from_file_location("ray_cell_alone", ROOT / "experiments/engines/ray_cell.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(_Worker, "started", [], raising=False)
    monkeypatch.setattr(module, "PreloadedWorker", _Worker)
    monkeypatch.chdir(tmp_path)
    return module


def test_tasks_are_given_their_supervisor_which_they_tell_that_they_have_begun(ray_cell, monkeypatch):
    """And the supervisor asks itself, as an actor, whether it is needed."""
    asked: list[tuple] = []
    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *given: asked.append(given)))
    context = SimpleNamespace(current_actor="the actor")
    ray = SimpleNamespace(get_runtime_context=lambda: context, remote=lambda **_: lambda function: task)
    monkeypatch.setattr(ray_cell, "ray", ray)
    monkeypatch.setattr(ray_cell, "_check", lambda supervisor: asked.append(("checks", supervisor)))
    thread = SimpleNamespace(Thread=lambda target, args, daemon: SimpleNamespace(start=lambda: target(*args)))
    monkeypatch.setattr(ray_cell, "threading", thread)
    ray_cell.RaySupervisor()._start("cell", (1, "folder", 2), {})
    assert asked == [("checks", "the actor"), ("the actor", "cell", 1, "folder", 2)]


def test_a_killed_process_is_told_to_ray_and_followed_by_another(ray_cell: ModuleType, tmp_path: Path):
    with pytest.raises(ray_cell.CellKilled, match="killed by signal 9"):
        ray_cell.train(SUPERVISOR, "killed", 1, str(tmp_path), 2)
    assert ray_cell.train(SUPERVISOR, "cell", 1, str(tmp_path), 2) == (0, "2 threads")
    assert len(_Worker.started) == 2


class _RayError(Exception):
    """What Ray raises of its own: a node that is gone, say."""


class _RayTaskError(_RayError):
    """What Ray raises where the task itself raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a traceback of many lines")
        self.cause = cause


def test_outcomes_are_those_of_the_tasks_that_have_ended(ray_cell: ModuleType, monkeypatch):
    """What was killed or raised has no status, and says why in a line."""
    outcomes = {
        "done": (0, ""),
        "broken": _RayTaskError(ValueError("no such file")),
        "lost": _RayError("the node died\nits log: ..."),
    }
    asked: list[tuple] = []

    def get(task: str) -> tuple[int, str]:
        if isinstance(outcomes[task], Exception):
            raise outcomes[task]
        return outcomes[task]

    def wait(tasks: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        asked.append((tasks, num_returns, timeout))
        return [task for task in tasks if task in outcomes], []

    errors = SimpleNamespace(RayTaskError=_RayTaskError, RayError=_RayError)
    monkeypatch.setattr(ray_cell, "ray", SimpleNamespace(get=get, wait=wait, exceptions=errors))
    tasks = {"a": "done", "b": "broken", "c": "lost", "d": "running"}
    assert ray_cell.RaySupervisor._ended(None, tasks) == {
        "a": (0, ""),
        "b": (None, "ValueError: no such file"),
        "c": (None, "the node died"),
    }
    assert asked == [(list(tasks.values()), 4, 0)], "it does not wait for any"


def test_a_cell_that_was_killed_too_often_says_what_killed_it(ray_cell: ModuleType, monkeypatch):
    """Ray raises the task's own error as an error of both kinds."""

    class Killed(ray_cell.CellKilled, _RayTaskError):
        def __init__(self, why: str) -> None:
            self.cause = ray_cell.CellKilled(why)

    def get(task: str) -> None:
        raise Killed("its process: killed by signal 9")

    errors = SimpleNamespace(RayTaskError=_RayTaskError, RayError=_RayError)
    monkeypatch.setattr(ray_cell, "ray", SimpleNamespace(get=get, exceptions=errors))
    assert ray_cell._outcome("a task") == (None, "its process: killed by signal 9")


def test_tasks_are_tried_again_after_a_kill_only_and_their_process_stays_for_the_next(ray_cell, monkeypatch):
    asked: list[dict] = []
    task = SimpleNamespace(options=lambda **given: asked.append(given) or task, remote=lambda *_: "the task")
    monkeypatch.setattr(
        ray_cell,
        "ray",
        SimpleNamespace(
            remote=lambda **given: asked.append(given) or (lambda function: task),
            cancel=lambda task, force: asked.append({"cancelled": task, "force": force}),
            actor=SimpleNamespace(exit_actor=lambda: asked.append({"actor": "ended"})),
        ),
    )
    supervisor = ray_cell.RaySupervisor.__new__(ray_cell.RaySupervisor)
    supervisor.me = "the actor"
    assert supervisor._start("cell", (1, "folder", 2), {"max_retries": 3}) == "the task"
    supervisor._kill("the task")
    supervisor._end()
    assert asked == [
        {"max_calls": 0, "retry_exceptions": [ray_cell.CellKilled]},
        {"max_retries": 3},
        {"cancelled": "the task", "force": True},
        {"actor": "ended"},
    ]


def test_the_actor_asks_itself_every_minute_whether_it_is_needed(ray_cell: ModuleType, monkeypatch):
    class Enough(Exception):
        """Ends the loop."""

    asked: list[object] = []

    def end_unless_needed() -> None:
        asked.append("needed?")
        if asked.count("needed?") == 2:
            raise Enough

    supervisor = SimpleNamespace(end_unless_needed=SimpleNamespace(remote=end_unless_needed))
    monkeypatch.setattr(ray_cell, "time", SimpleNamespace(sleep=asked.append))
    with pytest.raises(Enough):
        ray_cell._check(supervisor)
    assert asked == [60.0, "needed?", 60.0, "needed?"]


def test_a_cell_trains_in_the_folder_of_its_sweep_and_says_that_it_has_begun(ray_cell, tmp_path):
    """Relative paths of its record start there."""
    begun: list[str] = []
    supervisor = SimpleNamespace(begin=SimpleNamespace(remote=begun.append))
    folder = tmp_path / "sweep"
    folder.mkdir()
    ray_cell.train(supervisor, "cell", 1, str(folder), 1)
    assert (Path.cwd(), begun) == (folder, ["cell"])
