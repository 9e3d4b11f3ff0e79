"""Processes that have ended, versions, and processes that end with their parent."""

import importlib.metadata
import os
import platform
import signal
from types import SimpleNamespace

import pytest

from experiments.system import machine, signals, torchrun


@pytest.fixture(autouse=True)
def untold():
    yield
    signals._received.clear()
    signals._others.clear()


def test_a_process_that_has_just_ended_need_not_be_told(monkeypatch):
    def gone(process: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(signals.os, "kill", gone)
    signals._received.append(signal.SIGTERM.value)
    with signals.passing_on():
        signals.pass_on_to(7)
        assert signals.received() == signal.SIGTERM


def test_versions_are_those_of_python_and_of_the_packages_that_are_there():
    found = machine.versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == importlib.metadata.version("torch")


@pytest.mark.parametrize(("told", "ends"), [("own", []), ("other", [128 + signal.SIGTERM]), ("", [])])
def test_a_process_ends_at_once_only_where_its_parent_is_another_than_it_was_told(monkeypatch, told, ends):
    """And tells no process that it starts."""
    ended: list[int] = []
    monkeypatch.setattr(torchrun.sys, "platform", "linux")
    monkeypatch.setattr(torchrun.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=lambda *words: None))
    monkeypatch.setattr(torchrun.os, "_exit", ended.append)
    monkeypatch.delenv(torchrun.PARENT, raising=False)
    if told:
        monkeypatch.setenv(torchrun.PARENT, str(os.getppid() + (told == "other")))
    torchrun.end_with_parent(signal.SIGTERM)
    assert ended == ends
    assert torchrun.PARENT not in os.environ
