"""Cells of vanished nodes, texts that are prepared once, threads of the measured peak."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.steady import changed, said, tiny_config

from experiments import engines, sweep
from experiments.engines.engine import Engine, State
from experiments.planning.plan import plan
from experiments.training import execute


class _Pretended(Engine):
    """Ends cells as it is told to: the folder's record, then the states of every cell in turn."""

    capacity = 2

    def __init__(self, states: dict[str, list], log: list[str]) -> None:
        self.states, self.log, self.here = states, log, []

    def submit(self, planned) -> None:
        self.log.append(f"submit {planned.run}")
        self.here.append(planned)

    def changed(self):
        return list(self.here)

    def state(self, planned) -> State:
        act = self.states[planned.run].pop(0)
        state = act(planned) if callable(act) else act
        if state.ended:
            self.here.remove(planned)
        return state

    def cancel(self, planned) -> bool:
        return planned.config.seed > 0

    def close(self) -> None:
        self.log.append("close")


def _complete(metrics: dict):
    def act(planned) -> State:
        planned.folder.path.mkdir(parents=True, exist_ok=True)
        planned.folder.finish({"metrics": metrics})
        return State(ended=True, status=0)

    return act


@pytest.fixture
def place(place: Path, monkeypatch) -> Path:
    monkeypatch.setattr(execute.peak_flops, "peak", lambda device, cache: None)
    return place


def _configs(count: int, **keys):
    config = tiny_config(data__name="text", data__path="book.txt", results="results", name="study", **keys)
    return [changed(config, seed=seed) for seed in range(count)]


def test_a_cell_that_was_complete_when_its_node_vanished_is_not_submitted_again(place: Path, monkeypatch):
    (config,) = _configs(1, evaluate__splits=["test"])
    planned, log = plan(config), []

    def complete_and_lost(cell) -> State:
        _complete({"test": {"loss": 1.0, "bits_per_byte": 1.0}})(cell)
        return State(ended=True, lost=True, why="its node is gone")

    engine = _Pretended({planned.run: [complete_and_lost]}, log)
    monkeypatch.setattr(engines, "make_engine", lambda todo: engine)
    with said() as printed:
        assert sweep.train_all([planned]) == []
    assert log == [f"submit {planned.run}", "close"]
    assert printed[-1].endswith("done: test loss 1.0000, 1.0000 bits/byte")


def test_every_text_of_a_sweep_is_prepared_once_before_its_cells(place: Path, monkeypatch):
    prepared: list[str] = []
    monkeypatch.setattr(execute.data, "prepare", lambda text, progress: prepared.append(text.path))
    one, other = _configs(2)
    cells = [one, other, changed(other, data__path="another.txt"), changed(other, optim__lr=0.1)]
    sweep._prepare([SimpleNamespace(config=config) for config in cells])
    assert prepared == ["book.txt", "another.txt"]


def test_the_peak_is_measured_with_the_threads_that_cells_have(monkeypatch):
    done: list[object] = []
    monkeypatch.setattr(execute.data, "prepare", lambda text, progress: None)
    monkeypatch.setattr(execute.torch, "set_num_threads", done.append)
    monkeypatch.setattr(execute.peak_flops, "peak", lambda device, cache: done.append(device.type))
    execute.prepare(tiny_config(trainer__threads=3), torch.device("cpu"))
    assert done == [3, "cpu"]
    execute.prepare(tiny_config(trainer__threads=4), None)
    assert done == [3, "cpu"]
