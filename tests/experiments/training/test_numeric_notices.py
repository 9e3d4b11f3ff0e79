"""A run whose model's numbers a measure finds wrong says so at its end, and again when it is probed."""

from pathlib import Path

import pytest
from support.program import Lab
from support.task_lab import TaskLab

from zoo.mixers.mesanet import Solver

pytestmark = pytest.mark.slow

SHORT = ("trainer.max_steps=2", "trainer.val_every=2")


@pytest.mark.parametrize("kind", [Lab, pytest.param(TaskLab, marks=pytest.mark.long)], ids=["text", "task"])
@pytest.mark.parametrize(("steps", "told"), [(1, True), (30, False)])
def test_systems_that_are_not_solved_are_told_of(tmp_path: Path, lab: Lab, kind, steps, told):
    place = kind(tmp_path / "here", lab.text, lab.cache)
    outcome = place.done("model=mesanet", *SHORT, f"model.mixers.mesanet.cg_steps={steps}")
    notices = [line for line in outcome.err.splitlines() if "unsolved" in line]
    assert len(notices) == told, outcome.err
    probed = place.done("job=probe", f"runs={place.run_folder().parent}")
    assert ("unsolved" in probed.err) == told


def test_a_model_without_such_a_mixer_is_not_looked_at(lab: Lab, monkeypatch):
    monkeypatch.setattr(Solver, "update", None)
    outcome = lab.here(*SHORT)
    assert (outcome.status, "notice" in outcome.err) == (0, False), outcome.err
