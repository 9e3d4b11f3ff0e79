"""What each stage of job=gpu runs, within which time, and when it counts as finished."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.steady import tiny_config

from experiments.bench import compiled
from experiments.bench import peers as installed
from experiments.bench.cases import CASES
from experiments.configuration.compose import architectures
from experiments.gpu import compile_stage, stages
from experiments.gpu.settings import WORKERS, Settings
from experiments.runs import RunPaused


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.of(tiny_config(results=str(tmp_path), device="cpu", gpu__minutes=2.0))


def test_a_resumable_suite_is_finished_with_its_last_row_and_others_with_their_table(settings, monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(stages, "run_suite", lambda config: ran.append(config.suite))
    for finished in (False, True):
        monkeypatch.setattr(stages, "is_finished", lambda config, finished=finished: finished)
        ended = {
            name: stages.STAGES[name](settings) for name in ("attention", "kernels", "latency", "models")
        }
        assert ended == {"attention": True, "kernels": finished, "latency": True, "models": finished}
    assert ran == ["attention", "kernels", "latency", "models"] * 2


def test_training_stages_and_publishing_are_as_finished_as_their_runs(settings, monkeypatch):
    monkeypatch.setattr(stages, "advance", lambda given, name: (given, name) == (settings, "sf"))
    monkeypatch.setattr(stages, "publish", lambda given: given is settings)
    ended = {name: stages.STAGES[name](settings) for name in ("dense", "sf", "publish")}
    assert ended == {"dense": False, "sf": True, "publish": True}


@pytest.mark.parametrize("complete", [False, True])
def test_a_run_is_trained_for_what_preparing_the_text_leaves_of_three_quarters_of_the_time(
    settings, monkeypatch, capsys, complete: bool
):
    """A pause is no failure: the stage goes on the next time. The bar is closed either way."""
    closed, planned = [], []

    def plan(config):
        planned.append(config)
        return SimpleNamespace(title="a run", folder=SimpleNamespace(complete=complete))

    def execute(given, bar):
        if not complete:
            raise RunPaused("paused at step 7")

    clock = [1000.0]  # preparing takes 30 s
    monkeypatch.setattr(stages.time, "monotonic", lambda: clock[-1])
    monkeypatch.setattr(stages.data, "prepare", lambda config: clock.append(1030.0))
    monkeypatch.setattr(stages, "plan", plan)
    monkeypatch.setattr(stages, "execute", execute)
    monkeypatch.setattr(
        stages, "Bar", lambda title, shown: SimpleNamespace(close=lambda: closed.append(title))
    )
    assert stages.advance(settings, "dense") == complete
    (config,) = planned
    assert config.trainer.max_minutes == pytest.approx((0.75 * 120 - 30) / 60)
    assert closed == ["a run"]
    assert ("paused at step 7" in capsys.readouterr().out) == (not complete)


def test_a_stage_whose_time_is_over_still_trains_a_second(settings, monkeypatch):
    """So that a run is set up, and says where it stands."""
    planned = []
    clock = [0.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: clock[-1])
    monkeypatch.setattr(stages.data, "prepare", lambda config: clock.append(1e6))
    folder = SimpleNamespace(title="", folder=SimpleNamespace(complete=False))
    monkeypatch.setattr(stages, "plan", lambda config: planned.append(config) or folder)
    monkeypatch.setattr(stages, "execute", lambda *_: None)
    stages.advance(settings, "sf")
    assert [config.trainer.max_minutes for config in planned] == [pytest.approx(1 / 60)]


def test_what_is_compiled_are_all_models_first_and_all_cases_and_for_another_gpu_the_cases(settings):
    cases = [f"case {name}" for name in CASES]
    models = [f"model {name}" for name in architectures(settings.config.model)]
    assert compile_stage._pieces(settings) == models + cases
    config = settings.config
    ahead = dataclasses.replace(config, gpu=dataclasses.replace(config.gpu, target="H200"))
    assert compile_stage._pieces(Settings.of(ahead)) == cases


@pytest.mark.parametrize(
    ("cores", "processes"), [(None, 1), (1, 1), (WORKERS, WORKERS), (WORKERS + 1, WORKERS)]
)
def test_compiling_takes_the_cores_that_are_there_up_to_a_limit(settings, monkeypatch, cores, processes):
    monkeypatch.setattr("experiments.gpu.settings.os.cpu_count", lambda: cores)
    assert settings.workers == processes
    assert dataclasses.replace(settings, rehearse=True).workers == 1


def test_forms_that_are_compiled_ahead_are_ours_and_those_of_peers_in_triton_on_two_sequences(monkeypatch):
    """Other peers' kernels are no launches that could be captured; one sequence would be compiled once more."""
    peers = {"fla": "its form", "flash_attn": "no Triton", "liger": "another form"}
    asked = []

    def peers_of(name, calls, device):
        asked.append((name, next(iter(calls[0].tensors())).shape[:2], device))
        return peers.items()

    monkeypatch.setattr(installed, "peers_of", peers_of)
    monkeypatch.setattr(compiled, "on_triton", lambda call: call.operation)
    forms, leaves = compile_stage._forms_ahead("hyper_pre", 16)
    ((name, shape, device),) = asked
    assert (name, tuple(shape), device.type) == ("hyper_pre", (2, 16), "cuda")
    assert list(forms) == ["triton", "fla", "liger"]
    assert set(forms["triton"]()) == {"hyper_pre"}
    assert leaves
    assert all(x.requires_grad and x.device.type == "cpu" and x.dtype != torch.float64 for x in leaves)


def test_what_breaks_the_gpu_ends_the_tuning_and_no_other_failure_does(monkeypatch):
    def failing(words: str):
        def run(calls):
            raise RuntimeError(words)

        monkeypatch.setattr(stages, "_triton", run)
        return stages._launch("short_conv", 16, "forward", torch.device("cpu"))

    assert failing("no such form") == "RuntimeError: no such form"
    with pytest.raises(RuntimeError, match="CUDA error"):
        failing("CUDA error: an illegal memory access was encountered")


def test_training_reads_what_is_given_of_wikitext_and_a_rehearsal_the_text_of_the_command(tmp_path):
    """Folders and files that are not in gpu.inputs come from the Hub."""
    base = tiny_config(results=str(tmp_path), gpu__inputs=str(tmp_path), data__cache_dir="kept")
    rehearsed = Settings.of(dataclasses.replace(base, gpu=dataclasses.replace(base.gpu, rehearse=True)))
    data = rehearsed.training("dense", 60.0).data
    assert data == dataclasses.replace(base.data, seq_len=32, batch_size=4)

    def given() -> tuple:
        data = Settings.of(base).training("dense", 60.0).data
        assert (data.name, data.tokenizer, data.cache_dir) == ("wikitext103", "gpt2", "kept")
        return data.path, data.train_path, data.gpt2_path

    assert given() == (None, None, None)
    for folder in ("wikitext-103-raw-v1", "gpt2"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a-train-1.parquet").touch()
    names = ("wikitext-103-raw-v1", "*train*.parquet", "gpt2")
    assert given() == tuple(str(tmp_path / name) for name in names)
