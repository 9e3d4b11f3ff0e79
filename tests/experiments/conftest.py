"""Places to run the program in, and one finished run that many tests look at."""

from pathlib import Path

import pytest
from support.program import Lab, write_text
from support.task_lab import TaskLab

from experiments.compare import confirm, select


@pytest.fixture(scope="session")
def small_text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "book.txt")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(tmp_path: Path, small_text: Path, shared_cache: Path) -> Lab:
    return Lab(tmp_path / "lab", small_text, shared_cache)


@pytest.fixture
def task_lab(tmp_path: Path, small_text: Path, shared_cache: Path) -> TaskLab:
    return TaskLab(tmp_path / "lab", small_text, shared_cache)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, small_text: Path, shared_cache: Path) -> Lab:
    """A lab with one complete run, not to be changed by tests."""
    lab = Lab(tmp_path_factory.mktemp("finished") / "lab", small_text, shared_cache)
    outcome = lab.here()
    assert outcome.status == 0, outcome.err
    return lab


@pytest.fixture
def pretend(monkeypatch):
    """Runs that are complete at once, with the loss that a function of the configuration gives; None: it diverges."""
    trained = []

    def give(loss):
        def train_all(plans):
            for planned in (p for p in plans if not p.done):
                trained.append((planned.config.model.preset, planned.config.optim.lr, planned.config.seed))
                value = loss(planned.config)
                planned.folder.begin(planned.yaml(), planned.identity)
                part = planned.config.trainer.pause_at
                if part is not None:
                    trained[-1] = (*trained[-1], part)
                    rows = f"step,split,loss\n{part},train,0.5\n{part},validation,{value}\n"
                    (planned.folder.path / "metrics.csv").write_text(rows)
                elif value is None:
                    (planned.folder.path / "failure.json").write_text('{"kind": "NonFinite"}')
                else:
                    metrics = {key: {"loss": value} for key in planned.config.evaluate.splits}
                    planned.folder.finish({"metrics": metrics})
            return [p for p in plans if not p.done]

        for module in (select, confirm):
            monkeypatch.setattr(module, "train_all", train_all)
        return trained

    return give
