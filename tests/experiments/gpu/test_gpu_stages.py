"""The stages of job=gpu, rehearsed small on this machine: what a GPU would run is at least known to run."""

import csv
import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import triton
from support.program import Lab

from experiments.configuration.schema import Config, GpuConfig
from experiments.gpu import stages
from experiments.gpu.settings import Settings
from experiments.gpu.short_stage import read_plan
from experiments.system import paths
from kernels.ops.short_conv_triton import _forward_tuned
from kernels.triton_common import tuning
from zoo.errors import UserError


@pytest.mark.long
def test_every_stage_runs_once_and_is_skipped_afterwards(lab: Lab):
    words = ["job=gpu", "gpu.rehearse=true"]
    first = lab.run(*words, timeout=600)
    assert first.status == 0, first.err
    folder = lab.results / "gpu-rehearsal"
    assert set(json.loads((folder / "stages.json").read_text())) == {
        *("tests", "compile", "kernel_tests", "tune", "attention", "kernels", "latency", "models", "dense"),
        *("sf", "publish"),
    }
    latency = _rows(folder / "published" / "latency.csv")
    assert {row["model"] for row in latency} == {"transformer", "hypergraph"}
    assert all(float(row["milliseconds_median"]) > 0 for row in latency)
    kernels = _rows(folder / "published" / "kernels.csv")
    assert {row["model"] for row in kernels} == {"short_conv", "short_conv, a step", "hyper_pre"}
    models = _rows(folder / "published" / "models.csv")
    assert {(row["model"], row["mode"]) for row in models} == {
        (model, mode)
        for model in ("transformer", "hypergraph")
        for mode in ("training step", "prefill", "decode")
    }
    tested = json.loads((folder / "kernel_tests.json").read_text())
    assert {"test_short_conv_triton.py", "test_kernels_gpu.py"} <= set(tested)
    assert {path.name for path in (folder / "published").glob("*.svg")} == {
        "kernels_forward.svg",
        "kernels_forward_backward.svg",
        "models_none.svg",
    }
    scores = _rows(folder / "published" / "gpu_training.csv")
    assert [row["model"] for row in scores] == ["dense", "sf"]
    assert all(row["complete"] == "True" and row["training_set"] for row in scores)
    again = lab.run(*words)
    assert again.status == 0, again.err
    assert again.out.count("done before") == 11


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.slow
def test_without_a_gpu_it_says_that_everything_stays_unmeasured(lab: Lab):
    assert "unmeasured" in lab.refused("job=gpu")


def settings_in(folder: Path, **gpu) -> Settings:
    return Settings.of(Config(device="cpu", results=str(folder), gpu=GpuConfig(rehearse=True, **gpu)))


def test_a_rehearsal_writes_beside_what_is_measured_and_committed(tmp_path):
    """Its numbers are of tiny models on any machine: they neither overwrite tables nor count as finished stages."""
    rehearsal, real = (dataclasses.replace(settings_in(tmp_path), rehearse=x) for x in (True, False))
    suites = ("attention", "kernels", "latency", "models")

    def places(settings: Settings) -> list[str]:
        tables = [settings.published, *(settings.bench(suite).bench.out for suite in suites)]
        return [str(Path(x).relative_to(tmp_path)) for x in [*tables, settings.training("sf", 60.0).results]]

    assert places(rehearsal) == ["gpu-rehearsal/published"] * 5 + ["gpu-rehearsal"]
    assert places(real) == ["published"] * 5 + ["gpu"]


def test_kernel_tests_go_on_where_time_ended_them(tmp_path, monkeypatch):
    """The second file takes too long the first time, and fails the second; then the third is not held up by it."""
    outcomes = iter([0, None, 1, 5, 0])
    asked = []
    monkeypatch.setattr(stages, "_pytest", lambda file, *_: asked.append(file.name) or next(outcomes))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "tests" / "kernels").mkdir(parents=True)
    monkeypatch.setattr(stages, "REHEARSED", [f"test_{name}.py" for name in "abc"])
    for name in "abc":
        (tmp_path / "tests" / "kernels" / f"test_{name}.py").touch()
    settings = settings_in(tmp_path)
    assert not stages.run_kernel_tests(settings)
    with pytest.raises(UserError, match="test_b"):
        stages.run_kernel_tests(settings)
    assert stages.run_kernel_tests(settings)
    assert asked == ["test_a.py", "test_b.py", "test_b.py", "test_c.py", "test_b.py"]


def test_choices_of_the_autotuner_become_the_table(tmp_path, monkeypatch):
    """What is chosen is written, read back and used, and other devices' sections stay."""
    path = tmp_path / "tuned.toml"
    path.write_text(
        '["other GPU"."short_conv._forward"]\n"D=1,TAPS=2" = { BD = 8, num_warps = 1, num_stages = 2 }\n'
    )
    monkeypatch.setattr(tuning, "TABLE", path)
    monkeypatch.setattr(tuning.Tuned, "all", [_forward_tuned])
    tuned = tuning.Tuned(_forward_tuned.kernel, _forward_tuned.configs, ["D", "TAPS"])
    # As Triton's autotuner keeps it: values of the key, then dtypes.
    tuned.__dict__["autotuned"] = SimpleNamespace(
        cache={
            (768, 4, "torch.bfloat16", "torch.bfloat16"): triton.Config(
                {"BD": 128}, num_warps=8, num_stages=1
            )
        }
    )
    assert tuning.record("a GPU", path) == 1
    table = tuning._table("a GPU")
    ((key, config),) = table.items()
    assert key == ("short_conv._forward", "D=768,TAPS=4,bfloat16")
    assert (config.kwargs, config.num_warps, config.num_stages) == ({"BD": 128}, 8, 1)
    assert ("short_conv._forward", "D=1,TAPS=2") in tuning._table("other GPU")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    names = dict.fromkeys(tuned.kernel.arg_names) | {
        "D": 768,
        "TAPS": 4,
        "x": torch.zeros(1, dtype=torch.bfloat16),
    }
    assert tuned._known((), names).num_warps == 8
    assert tuned._known((), names | {"x": torch.zeros(1)}) is None
    with tuning.afresh():
        assert tuned._known((), names) is None
    tuning._table.cache_clear()


def test_tuning_launches_a_case_once(tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(stages, "_launch", lambda *unit: launched.append(unit[:3]) or "tuned")
    assert stages.tune_kernels(settings_in(tmp_path))
    assert stages.tune_kernels(settings_in(tmp_path))
    assert launched == [("short_conv", 16, "forward"), ("short_conv", 16, "backward")]
    assert not (tmp_path / "gpu-rehearsal" / "tuned.toml").exists()  # the interpreter chooses nothing


@pytest.mark.slow
def test_a_launch_says_how_it_went():
    cpu = torch.device("cpu")
    assert stages._launch("short_conv", 16, "backward", cpu) == "tuned"
    with mock.patch("kernels.ops.hyper_pre.OPERATION.choose", side_effect=ValueError("no")):
        assert stages._launch("hyper_pre", 16, "forward", cpu) == "ValueError: no"


def test_no_time_left_pauses_tuning(tmp_path):
    assert not stages.tune_kernels(settings_in(tmp_path, minutes=0.0))


PIECES = """
[[work]]
name = "later"
priority = 2
seconds = 50
tests = ["tests/kernels/test_rotary.py"]

[[work]]
name = "first"
priority = 1
seconds = 50
under = ["no-such-profiler"]
bench = ["suite=profile", "model=kda_pure", "model.d_model=16", "bench.lengths=[4096]"]

[[work]]
name = "too long"
priority = 3
seconds = 9999
bench = ["suite=kernels"]
"""


@pytest.mark.long
def test_the_short_stage_does_its_plan_by_priority_and_goes_on_where_it_stopped(lab: Lab):
    plan = lab.results.parent / "plan.toml"
    plan.write_text(PIECES)
    words = ["job=gpu", "gpu.rehearse=true", "gpu.stage=short", f"gpu.plan={plan}"]
    outcome = lab.run(*words, timeout=300)
    assert outcome.status == 0, outcome.err
    folder = lab.results / "gpu-rehearsal"
    lines = [json.loads(line) for line in (folder / "short" / "short.jsonl").read_text().splitlines()]
    assert [(line["work"], line["outcome"]) for line in lines] == [("first", "done"), ("later", "done")]
    assert (folder / "short.tar.gz").is_file()
    rows = _rows(folder / "short" / "profile.csv")
    assert {(row["model"], row["tokens"]) for row in rows} == {("kda_pure", "16")}
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-3)
    again = lab.run(*words, timeout=300)
    assert again.out.count("done before") == 2
    assert "too long: skipped, needs 9999 s" in again.out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "no [[work]]"),
        ("[[work", "gpu.plan"),
        ('[[work]]\nname = "a"\npriority = 1\nseconds = 5', "bench or tests"),
        ('[[work]]\nname = "a"\npriority = 1\nseconds = 0\ntests = ["b"]', "above 0"),
        ('[[work]]\nname = "a"\nseconds = 5\ncost = 3', "cost"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text, reason):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(UserError, match=re.escape(reason)):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(UserError, match="no_such"):
        read_plan(tmp_path / "no_such.toml")
