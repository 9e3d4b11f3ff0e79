"""The task that trains a cell on a node of Ray's, with a pretended process that starts cells; Ray is not needed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from experiments.system.paths import ROOT

SUPERVISOR = SimpleNamespace(begin=SimpleNamespace(remote=lambda record: None))


class _Warm:
    started: list[_Warm]

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
    monkeypatch.setattr(_Warm, "started", [], raising=False)
    monkeypatch.setattr(module, "Warm", _Warm)
    monkeypatch.chdir(tmp_path)
    return module


def test_a_cell_has_the_threads_of_its_own_sweep(ray_cell: ModuleType, tmp_path: Path):
    """Ray's process goes from one sweep to the next, and with it the one that starts cells."""
    ended = [ray_cell.train(SUPERVISOR, "cell", 1, str(tmp_path), threads) for threads in (2, 2, 3)]
    assert ended == [(0, "2 threads"), (0, "2 threads"), (0, "3 threads")]
    assert [warm.threads for warm in _Warm.started] == [2, 3]


def test_tasks_are_given_their_supervisor_which_they_tell_that_they_have_begun(
    ray_cell: ModuleType, monkeypatch
):
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
    assert len(_Warm.started) == 2
