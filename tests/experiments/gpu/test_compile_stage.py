"""The stage that compiles: pieces run apart, failures are outcomes, what is done is skipped."""

import json
import time
from pathlib import Path

import pytest

from experiments.bench.suites import models
from experiments.configuration.schema import Config, GpuConfig
from experiments.gpu import compile_stage
from experiments.gpu.settings import Settings

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


def test_a_model_is_run_once_and_its_times_do_not_go_into_the_published_table(settings, monkeypatch):
    """They are of a step that compiles. What failed is told by the mode."""
    asked: list[Config] = []
    rows = [{"mode": "prefill", "note": ""}, {"mode": "decode", "note": "no room"}, {"mode": "training step"}]
    monkeypatch.setattr(models, "run", lambda config: asked.append(config) or rows)
    assert compile_stage._run_model(settings, "kda") == {"decode": "no room"}
    bench = asked[0].bench
    assert Path(bench.out) == settings.folder / "compiled" / "kda"
    assert (bench.cases, bench.lengths, bench.repeats) == (["kda"], [compile_stage.LENGTH], 1)


@pytest.mark.parametrize(
    ("case", "ways"),
    [("hyper_pre", ["forward", "forward+backward"]), ("short_conv, a step", ["forward"])],
)
def test_a_case_is_compiled_in_every_way_that_it_has(settings, monkeypatch, case: str, ways: list[str]):
    monkeypatch.setattr(compile_stage, "_failure", lambda call: "it failed")
    found = compile_stage._run_case(settings, case)
    assert [name for name in found if name.startswith("triton")] == [f"triton, {way}" for way in ways]
