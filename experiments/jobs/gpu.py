"""job=gpu (make gpu): everything that needs a GPU, in resumable stages that each end within gpu.minutes.

    tests         the GPU tests, in bf16
    compile       every kernel in every launch configuration, on all processors, into Triton's cache
    kernel_tests  those of the kernels, compiled, file by file
    tune          launch configurations by Triton's autotuner, into kernels/triton_common/tuned.toml
    attention     every attention backend against every other, in one process
    kernels       every Triton form against PyTorch's and every installed peer (suite=kernels), case by case
    latency       the dense and the HyperGraph reference model from 512 to 32K tokens
    models        training step, prefill and decode of all presets (suite=models), row by row
    dense, sf     training of both by the reference recipe, within the time limit
    publish       scores of the best weights so far, curves and tables into results/published/
    short         only if gpu.stage names it: what a plan file lists (gpu.plan), by priority, in gpu.minutes together

A finished stage is skipped the next time; one that reached its time limit continues where it stopped. With
gpu.rehearse=true all stages run small on any machine; gpu.stage=compile gpu.target=H200 compiles on one without a GPU.
"""

from __future__ import annotations

import time

import torch

from experiments.configuration.schema import Config
from experiments.gpu.settings import Record, Settings
from experiments.gpu.stages import ONLY_WHEN_NAMED, STAGES
from experiments.jobs import Job
from experiments.jobs.bench import draw
from experiments.system import machine
from experiments.system.paths import IN_WHEEL
from zoo.errors import UserError, unknown


def run(config: Config) -> None:
    """Run the stages that are left, or the one that gpu.stage names. Raises UserError without a GPU or such a stage."""
    if IN_WHEEL:
        raise UserError(
            "job=gpu runs the tests of a checkout and tunes its kernels; run it in one (docs/gpu.md), or measure here "
            "with python run.py job=bench"
        )
    if config.gpu.target is not None:
        _check_ahead(config)
    elif not torch.cuda.is_available() and not config.gpu.rehearse:
        raise UserError(
            "no CUDA device here, so everything that needs one stays unmeasured; run `make gpu` on a machine with a "
            "GPU, or rehearse the stages small on this one with `python run.py job=gpu gpu.rehearse=true`"
        )
    settings = Settings.of(config)
    stage = config.gpu.stage
    if stage is not None and stage not in STAGES:
        raise unknown("stage", stage, STAGES)
    done = Record(settings.folder / "stages.json")
    usual = [name for name in STAGES if name not in ONLY_WHEN_NAMED]
    for name in usual if stage is None else [stage]:
        if stage is None and name in done:
            print(f"{name}: done before")
            continue
        _perform(name, settings, done)
    for suite in ("kernels", "models"):
        draw(settings.published / f"{suite}.csv")


def _check_ahead(config: Config) -> None:
    """Refuse what cannot be compiled for a GPU elsewhere. Raises UserError."""
    from experiments.bench.compiled import check_compiler

    if config.gpu.stage != "compile" or config.gpu.rehearse:
        raise UserError("gpu.target works only with gpu.stage=compile, without gpu.rehearse")
    check_compiler("gpu.target", config.gpu.target)


def _perform(name: str, settings: Settings, done: Record) -> None:
    began = time.monotonic()
    print(f"{name}: on {settings.device_name}", flush=True)
    finished = STAGES[name](settings)
    seconds = time.monotonic() - began
    print(
        f"{name}: {'done' if finished else 'paused (the same command resumes it)'} after {seconds:.0f} s",
        flush=True,
    )
    if finished:
        done.add(name, {"seconds": round(seconds, 1), "versions": machine.versions()})


JOB = Job(
    "gpu",
    "run everything that needs a GPU, in resumable stages (make gpu)",
    run,
    place=lambda config: f"{Settings.of(config).folder} {config.gpu.stage or ''}".strip(),
)
