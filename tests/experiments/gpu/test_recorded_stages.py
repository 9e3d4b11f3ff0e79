"""Stages of job=gpu: their order, configurations, commands, tables, and when they are finished."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recorded import check
from support.steady import changed, differences, leaves, masked, pretended_machine, refusal, said, tiny_config

from experiments.gpu import stages
from experiments.gpu.settings import PATTERNS, Record, Settings
from experiments.runs import read_metrics
from kernels.triton_common import tuning

RECORDED = Path(__file__).parent / "recorded"


def test_configurations(tmp_path: Path):
    inputs = tmp_path / "inputs"
    (inputs / "gpt2").mkdir(parents=True)

    def lines() -> Iterator[str]:
        own = {"data__cache_dir": "cache", "trainer__threads": 7}  # kept by every stage
        base = tiny_config(results=str(tmp_path), gpu__inputs=str(inputs), gpu__minutes=4.0, **own)
        usual = leaves(base)
        yield f"{list(stages.STAGES)}"
        for rehearse in (False, True):
            settings = Settings.of(changed(base, gpu__rehearse=rehearse))
            with pretended_machine(None):
                yield (
                    f"{rehearse}: {settings.folder} {settings.published} {settings.device_name} "
                    f"{settings.seconds}"
                )
            for suite in ("attention", "kernels", "latency", "models"):
                yield f" suite {suite}"
                yield from differences(settings.bench(suite), usual)
            for name in PATTERNS:
                yield f" training {name}"
                yield from differences(settings.training(name, 90.0), usual)
        (inputs / "wikitext-103-raw-v1").mkdir()
        (inputs / "a-train-1.parquet").touch()
        (inputs / "gpt2").rmdir()
        found = Settings.of(base)._data()
        yield f"{found.path} {found.train_path} {found.gpt2_path}"

    check(RECORDED / "settings.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_tests_and_tuning(tmp_path: Path, monkeypatch):
    """Which files are tested how, what is said of failures and of time; which launches are tuned, and not again."""
    asked: list[str] = []
    statuses = {"test_kernels_gpu.py": 1, "test_short_conv_triton.py": 5}

    def run(command, cwd, timeout):
        name = next((Path(word).name for word in command if word.endswith(".py")), "tests")
        asked.append(f"{name} {' '.join(command[4:])} {timeout:g}")
        status = statuses.get(name, 0)
        if status == "late":
            raise subprocess.TimeoutExpired(command, timeout)
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr(stages.subprocess, "run", run)
    monkeypatch.setattr(stages.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr("experiments.gpu.settings.os.cpu_count", lambda: 2)
    monkeypatch.setattr(stages, "_launch", lambda name, length, way, device: f"tuned {length}")
    monkeypatch.setattr(tuning, "record", lambda name, out: 3)
    settings = Settings.of(tiny_config(results=str(tmp_path), gpu__rehearse=True, gpu__minutes=2.0))
    whole = Settings.of(tiny_config(results=str(tmp_path / "whole"), gpu__minutes=2.0))

    def lines() -> Iterator[str]:
        for change in ({}, {}, {"test_kernels_gpu.py": "late"}, {"test_kernels_gpu.py": 0}):
            statuses.update(change)
            asked.clear()
            with said() as printed:
                end = refusal(stages.run_kernel_tests, settings)
            yield f"{change}: {end} {asked}"
            yield from printed
        for name in ("test_x_triton.py", "test_x.py"):
            asked.clear()
            yield (
                f"{name}: {stages._pytest(Path(name), 50.0, whole)} "
                f"{stages._pytest(Path(name), 0.5, whole)} {asked}"
            )
        for status in (0, 5, 1):
            statuses["tests"] = status
            asked.clear()
            yield (
                f"{status}: {refusal(stages._run_gpu_tests, settings)} "
                f"{refusal(stages._run_gpu_tests, whole)} {asked}"
            )
        for _ in range(2):
            with said() as printed, pretended_machine(None):
                yield f"{stages.tune_kernels(settings)}"
            yield from printed
        launches = list(stages._launches(False))
        yield f"{len(launches)} {launches[:8]} {[one for one in launches if one[0].endswith('a step')]}"
        record = Record(tmp_path / "new" / "r.json")
        record.add("a", {"x": 1})
        yield f"{'a' in Record(tmp_path / 'new' / 'r.json')} {'b' in record}"
        yield (tmp_path / "new" / "r.json").read_text()
        (tmp_path / "new" / "r.json").write_text("nonsense")
        yield refusal(Record, tmp_path / "new" / "r.json")

    check(RECORDED / "tests_and_tuning.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_what_breaks_the_gpu_ends_the_tuning_and_no_other_failure_does(monkeypatch):
    def failing(words: str):
        def run(calls):
            raise RuntimeError(words)

        monkeypatch.setattr(stages, "_triton", run)
        return stages._launch("short_conv", 16, "forward", torch.device("cpu"))

    assert failing("no such form") == "RuntimeError: no such form"
    with pytest.raises(RuntimeError, match="CUDA error"):
        failing("CUDA error: an illegal memory access was encountered")


def test_tables_of_training(tmp_path: Path, monkeypatch):
    settings = Settings.of(tiny_config(results=str(tmp_path), gpu__rehearse=True))

    def planned(name: str):
        folder = SimpleNamespace(path=tmp_path / name, complete=name == "dense")
        return SimpleNamespace(folder=folder, letters="FF", config=settings.config, title=name)

    plans = iter([planned("dense"), planned("sf")] * 3)
    monkeypatch.setattr(stages, "plan", lambda config: next(plans))
    monkeypatch.setattr(
        stages.data,
        "prepare",
        lambda config: SimpleNamespace(describe=lambda: {"train": "T", "test": "E"}),
    )

    def scored(config, corpus, folder, device, sink, splits):
        assert splits == settings.config.evaluate.splits
        return {"test": {"loss": 1.5, "perplexity": 4.5}}

    monkeypatch.setattr(stages, "score_best", scored)
    monkeypatch.setattr("experiments.system.machine.versions", lambda: {"torch": "9"})

    def lines() -> Iterator[str]:
        with pretended_machine(None), said() as printed:
            yield f"{stages.publish(settings)}"
            for name in ("dense", "sf"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "metrics.csv").write_text(
                    "step,tokens,split,tokens_per_second\n5,50,train,3.0\n9,90,train,1.0\n9,90,validation,\n9,90,train,2.0\n"
                )
                (tmp_path / name / "model.json").write_text("{}")
                yield f"{stages.publish(settings)}"
        yield from printed
        for file in sorted(settings.published.glob("*.csv")):
            yield from file.read_text().splitlines()

    check(RECORDED / "tables.txt", masked(list(lines()), {str(tmp_path): "<place>"}))
    (tmp_path / "dense" / "metrics.csv").write_text("step,tokens,split,tokens_per_second\n9,90,validation,\n")
    with pretended_machine(None), said():
        scores = stages._score(
            settings, "dense", planned("dense"), read_metrics(tmp_path / "dense/metrics.csv")
        )
    assert (scores["tokens_per_second_median"], scores["steps"]) == ("", "9"), (
        "a run of few steps has no speed"
    )
