"""job=gpu (make gpu): everything that needs a GPU, in resumable stages that each end within gpu.minutes.

    tests         the GPU tests, in bf16
    kernel_tests  those of the kernels, compiled, file by file
    tune          what Triton's autotuner chooses, into kernels/triton_common/tuned.toml
    attention     every attention backend against every other, in one process
    kernels       every Triton form against PyTorch's and every installed peer (suite=kernels), case by case
    latency       the dense and the HyperGraph reference model from 512 to 32K tokens
    models        training step, prefill and decode of all presets (suite=models), row by row
    dense, sf     training both by the reference recipe, as far as the time goes
    publish       scores of the best weights so far, curves and tables into results/published/

A finished stage is skipped the next time; one that its time ended goes on from where it was. With gpu.rehearse=true all
stages run small on any machine.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from experiments import machine
from experiments.gpu.stage_settings import Settings, kept
from experiments.schema import Config
from zoo.errors import UserError, unknown
from zoo.files import write_json


def run(config: Config) -> None:
    """Run the stages that are left, or the one that gpu.stage names."""
    if not torch.cuda.is_available() and not config.gpu.rehearse:
        raise UserError(
            "no CUDA device here, so everything that needs one stays unmeasured; run `make gpu` on a machine with a "
            "GPU, or rehearse the stages small on this one with `python run.py job=gpu gpu.rehearse=true`"
        )
    settings = Settings.of(config)
    stage = config.gpu.stage
    if stage is not None and stage not in STAGES:
        raise unknown("stage", stage, STAGES)
    done = _Done(settings.folder / "stages.json")
    for name in STAGES if stage is None else [stage]:
        if stage is None and name in done:
            print(f"{name}: done before")
            continue
        _perform(name, settings, done)


def _perform(name: str, settings: Settings, done: _Done) -> None:
    began = time.monotonic()
    print(f"{name}: on {settings.device_name}", flush=True)
    finished = STAGES[name](settings)
    seconds = time.monotonic() - began
    print(f"{name}: {'done' if finished else 'paused, to be gone on with'} after {seconds:.0f} s", flush=True)
    if finished:
        done.add(name, seconds)


class _Done:
    """Which stages are finished, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages = kept(path)

    def __contains__(self, name: str) -> bool:
        return name in self.stages

    def add(self, name: str, seconds: float) -> None:
        self.stages[name] = {"seconds": round(seconds, 1), "versions": machine.versions()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.stages)


def _tests(settings: Settings) -> bool:
    command = [sys.executable, "-m", "pytest", "tests", "-m", "gpu", "-q", "--timeout", str(settings.seconds)]
    command += ["--ignore", "tests/kernels"]
    if settings.rehearse:
        command += ["--collect-only"]
    status = subprocess.run(command, cwd=machine.ROOT, timeout=settings.seconds).returncode
    if status not in (0, 5):  # 5: no test was collected, as on a machine without a GPU
        raise UserError(
            f"the GPU tests failed (pytest ended with status {status}); the other stages can still be run"
        )
    return True


def _bench(suite: str) -> Callable[[Settings], bool]:
    def measure(settings: Settings) -> bool:
        from experiments.jobs import bench

        bench.run(settings.bench(suite))
        return True

    return measure


def _resumed(suite: str) -> Callable[[Settings], bool]:
    """A suite that keeps its rows and leaves for the next time what its time does not allow."""

    def measure(settings: Settings) -> bool:
        from experiments.jobs import bench

        config = settings.bench(suite)
        bench.run(config)
        return importlib.import_module(f"experiments.bench.suites.{suite}").finished(config)

    return measure


def _kernel_tests(settings: Settings) -> bool:
    from experiments.gpu import kernel_stages

    return kernel_stages.test(settings)


def _tune(settings: Settings) -> bool:
    from experiments.gpu import kernel_stages

    return kernel_stages.tune(settings)


def _train(name: str) -> Callable[[Settings], bool]:
    def train(settings: Settings) -> bool:
        from experiments.gpu.training_stages import advance

        return advance(settings, name)

    return train


def _publish(settings: Settings) -> bool:
    from experiments.gpu.training_stages import publish

    return publish(settings)


STAGES: dict[str, Callable[[Settings], bool]] = {
    "tests": _tests,
    "kernel_tests": _kernel_tests,
    "tune": _tune,
    "attention": _bench("attention"),
    "kernels": _resumed("kernels"),
    "latency": _bench("latency"),
    "models": _resumed("models"),
    "dense": _train("dense"),
    "sf": _train("sf"),
    "publish": _publish,
}
