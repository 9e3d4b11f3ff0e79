"""The stage that compiles: pieces run apart, failures are outcomes, what is done is skipped."""

import json
import time

import pytest

from experiments.configuration.schema import Config, GpuConfig
from experiments.gpu import compile_stage
from experiments.gpu.stage_settings import Settings

pytestmark = pytest.mark.slow  # each piece is a process


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings.of(Config(device="cpu", results=str(tmp_path), gpu=GpuConfig(rehearse=True)))


def test_a_piece_runs_in_a_process_of_its_own(settings):
    outcome = compile_stage._apart(settings, "case hyper_pre", time.monotonic() + 300)
    assert set(outcome) == {"seconds"}


def test_a_process_that_ends_early_is_an_outcome(settings):
    outcome = compile_stage._apart(settings, "case of nothing", time.monotonic() + 300)
    assert outcome == "its process ended with status 1"


def test_too_short_a_time_is_none(settings):
    assert compile_stage._apart(settings, "case hyper_pre", time.monotonic() - 1) is None
    assert compile_stage._apart(settings, "case hyper_pre", time.monotonic() + 0.01) is None


def test_what_is_done_is_skipped(settings, monkeypatch):
    asked = []
    outcomes = iter([{"seconds": 1.0}, None, {"seconds": 2.0}])
    monkeypatch.setattr(compile_stage, "_apart", lambda _, piece, __: asked.append(piece) or next(outcomes))
    assert not compile_stage.compile_kernels(settings)
    assert compile_stage.compile_kernels(settings)
    first, second = compile_stage._pieces(settings)
    assert asked == [first, second, second]
    assert json.loads((settings.folder / "compiled.json").read_text()) == {
        first: {"seconds": 1.0},
        second: {"seconds": 2.0},
    }
