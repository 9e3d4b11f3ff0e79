"""Places to run the program in, and one finished run that many tests look at."""

from pathlib import Path

import pytest
from support.program import Lab, write_text
from support.steady import forget_texts
from support.task_lab import TaskLab


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
    lab.done()
    return lab


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    """A working folder with a text in it and a cache."""
    monkeypatch.setenv("ARCHZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_texts()
    write_text(tmp_path / "book.txt", 30)
    return tmp_path
