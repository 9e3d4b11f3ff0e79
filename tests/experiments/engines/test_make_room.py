"""A cell that is told to make room: within a step, or where none will end, while it is scored or waits for its run."""

import os
import signal

import pytest
from support.held_lock import held_elsewhere
from support.program import Lab

from experiments.engines.engine import stops_when_signalled
from experiments.planning.plan import plan
from experiments.runs import LOCK, RunPaused
from experiments.system import signals
from experiments.system.processes import discard
from experiments.training.execute import execute, take_part
from experiments.training.lightning_modules import LanguageModelling


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
def test_a_cell_that_waits_for_its_run_pauses_and_nothing_is_recorded_as_a_failure(
    lab: Lab, monkeypatch, train
):
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
