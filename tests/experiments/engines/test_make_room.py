"""A cell that is told to make room, where no step will end: while it is scored."""

from __future__ import annotations

import signal

import pytest

from experiments import preemption
from experiments.engines.cell import _ends_when_told
from experiments.runs import RunPaused


def test_scoring_ends_with_a_pause_and_training_is_left_to_its_steps(monkeypatch):
    heard, told = [], []
    monkeypatch.setattr(preemption, "_told", told)
    report = _ends_when_told(lambda *message: heard.append(message[0]), "kda seed 1")
    report("test", 1, 2)
    told.append(signal.SIGUSR2)
    report("train", 1, 2)
    with pytest.raises(RunPaused, match=r"kda seed 1: .* while scoring test; the same command goes on"):
        report("test", 2, 2)
    assert heard == ["test", "train", "test"]
