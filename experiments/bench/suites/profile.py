"""suite=profile: where the time of a training step goes, by kernel on a GPU, by PyTorch operator on a CPU.

The configured model, or the presets that bench.cases names at its width, heads and depth, takes a few steps on one
sequence of each of bench.lengths, and one more under PyTorch's profiler. One row for every kernel:

    calls          in the step
    milliseconds   of all its calls, without those of kernels and operators that it calls
    share          of the step's sum over kernels
    step_ms        wall clock of a step without the profiler; beyond the sum of a GPU's kernels it waits for the host

Models already in the table are not profiled again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from zoo.config import ModelConfig

LENGTHS = {"cuda": [8192], "cpu": [512]}
WARM_UP = 3
SHOWN = 12
COLUMNS = [
    *(
        "suite",
        "model",
        "device",
        "precision",
        "tokens",
        "kernel",
        "calls",
        "milliseconds",
        "share",
        "step_ms",
    ),
    *("peak_memory_bytes", "note", "machine", "torch", "commit"),
]


def run(config: Config) -> list[dict[str, Any]]:
    """All rows of the table, those of earlier calls included."""
    device = pick_device(config.device)
    table = result_table.ResumableTable(config, device, COLUMNS)
    table.fill(_cells(config, device), config.bench.budget_s, "profile")
    return table.rows


def finished(config: Config) -> bool:
    """Return whether every model has its rows."""
    device = pick_device(config.device)
    return not result_table.ResumableTable(config, device, COLUMNS).unmeasured(_cells(config, device))


def models(config: Config) -> dict[str, ModelConfig]:
    """The models to profile, by name."""
    if config.bench.cases is None:
        return {config.model.preset or config.model.pattern: config.model}
    known = architectures(config.model)
    return {name: known[name] for name in matching_names(config.bench.cases, list(known))}


def _cells(config: Config, device: torch.device) -> Iterator[result_table.Cell]:
    for length in config.bench.lengths or LENGTHS[device.type]:
        for name, model in models(config).items():
            measure = functools.partial(_rows, config, name, model, length, device)
            yield result_table.Cell({"model": name, "tokens": length}, measure)


def _rows(
    config: Config, name: str, model: ModelConfig, length: int, device: torch.device
) -> list[dict[str, Any]]:
    precision = pick_precision(config.trainer.precision, device)
    same = {"suite": "profile", "model": name, "precision": precision, "tokens": length}
    same |= result_table.machine_facts(device)
    try:
        kernels, step_ms, peak = _profile(config, model, length, device)
    except Exception as error:  # of one model; the others go on
        note = result_table.failure_reason(error)
        tqdm.write(f"{name}, {length} tokens: {note}")
        if result_table.is_fatal(error):
            raise result_table.Crashed(f"{name}: {error}", [{**same, "note": note}]) from error
        return [{**same, "note": note}]
    finally:
        timing.free_memory(device)
    total = sum(milliseconds for _, _, milliseconds in kernels)
    rows = [
        {**same, "kernel": kernel, "calls": calls, "milliseconds": spent, "share": spent / total}
        | {"step_ms": step_ms, "peak_memory_bytes": peak}
        for kernel, calls, spent in kernels
    ]
    tqdm.write(f"{name}, {length} tokens: a step takes {step_ms:.1f} ms, its kernels {total:.1f} ms:")
    for row in rows[:SHOWN]:
        tqdm.write(
            f"  {100 * row['share']:5.1f} % {row['milliseconds']:9.3f} ms {row['calls']:6}x {row['kernel']}"
        )
    return rows


def _profile(
    config: Config, model: ModelConfig, length: int, device: torch.device
) -> tuple[list[tuple[str, int, float]], float, int | None]:
    """Kernels with their calls and milliseconds, longest first; a step's milliseconds; its peak bytes on a GPU."""
    made = make_model(config, model, length, device)
    step = TrainingStep(config, made, random_tokens(config, 1, length, device))
    times = timing.interleaved({"step": step}, config.bench.repeats, device, warm_up=WARM_UP)["step"]
    peak = timing.peak_memory(step, device)
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        if on_gpu:
            torch.cuda.synchronize(device)
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU an operator's event repeats the time of the kernels that it launches: only the kernels' own count.
    events = [
        event
        for event in profiler.key_averages()
        if getattr(event, field) > 0 and (not on_gpu or _is_kernel(event))
    ]
    events.sort(key=lambda event: -getattr(event, field))
    kernels = [(event.key[:160], event.count, getattr(event, field) / 1e3) for event in events]
    return kernels, timing.summary(times)["milliseconds_median"], peak


def _is_kernel(event: Any) -> bool:
    """Whether a GPU ran it: not an operator, nor a range of the profiler's own around several kernels."""
    return event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
