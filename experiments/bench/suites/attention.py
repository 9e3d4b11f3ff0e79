"""suite=attention: every backend of `attention` and `timeline_attention` that can serve, in one process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

import kernels
from experiments import machine
from experiments.bench import result_table, timing
from experiments.schema import Config
from kernels.ops import attention, timeline_attention

LENGTHS = [512, 1024, 2048, 4096]
TIMELINES = 6
# The reference writes T×T scores by definition; past this it would only measure memory.
REFERENCE_LIMIT = 4096


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of forward and forward+backward at every length; ratio: speed against the `torch` backend."""
    device = machine.pick(config.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + config.bench.budget_s
    for length in tqdm(config.bench.lengths or LENGTHS, desc="attention", unit="length"):
        if time.monotonic() > deadline:
            tqdm.write(
                f"bench.budget_s={config.bench.budget_s:g} is used up; lengths from {length} on are left out"
            )
            break
        for name, operation, call in _operations(config, length, device, dtype):
            rows += _compare(config, name, operation, call, length, device, dtype)
    return rows


def _operations(
    config: Config, length: int, device: torch.device, dtype: torch.dtype
) -> list[tuple[str, Any, Any]]:
    heads, width = config.model.n_heads, config.model.d_model // config.model.n_heads
    generator = torch.Generator(device).manual_seed(config.seed)
    shape = (1, length, heads, width)
    qkv = [
        torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_() for _ in range(3)
    ]
    route = torch.randint(TIMELINES, shape[:3], generator=generator, device=device)

    def dense(backend: str) -> torch.Tensor:
        return kernels.attention(*qkv, backend=backend)

    def routed(backend: str) -> torch.Tensor:
        return kernels.timeline_attention(*qkv, route, n_timelines=TIMELINES, rope_base=1e4, backend=backend)

    return [
        ("attention", attention.OPERATION, dense),
        ("timeline_attention", timeline_attention.OPERATION, routed),
    ]


def _compare(
    config: Config,
    name: str,
    operation: Any,
    call: Callable,
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[dict[str, Any]]:
    backends = [b for b in operation.backends if not (b == "reference" and length > REFERENCE_LIMIT)]
    usable = {b: why for b in backends if (why := _refusal(call, b)) is None}
    rows = []
    for mode, work in (("forward", _forward), ("forward+backward", _both)):
        calls = {b: functools.partial(work, call, b) for b in usable}
        times = timing.interleaved(calls, config.bench.repeats, device)
        peer = timing.summary(times["torch"])["milliseconds_median"]
        for backend, milliseconds in times.items():
            row = result_table.row(
                "attention",
                name,
                milliseconds,
                peer,
                device,
                backend=backend,
                mode=mode,
                precision=str(dtype).removeprefix("torch."),
                tokens=length,
                peak_memory_bytes=timing.peak_memory(calls[backend], device),
            )
            tqdm.write(result_table.line(row))
            rows.append(row)
    return rows


def _refusal(call: Callable, backend: str) -> str | None:
    try:
        call(backend)
    except (ValueError, torch.OutOfMemoryError) as error:
        return str(error)
    return None


def _forward(call: Callable, backend: str) -> None:
    with torch.no_grad():
        call(backend)


def _both(call: Callable, backend: str) -> None:
    call(backend).float().sum().backward()
