"""Timing alternatives against each other in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def interleaved(
    alternatives: dict[str, Callable[[], object]], repeats: int, device: torch.device, warm_up: int = 1
) -> dict[str, list[float]]:
    """Milliseconds of every repetition of every alternative, taken in turns, so that drift hits all alike."""
    for call in alternatives.values():
        for _ in range(warm_up):
            _timed(call, device)
    out: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, call in alternatives.items():
            out[name].append(_timed(call, device))
    return out


def summary(milliseconds: list[float]) -> dict[str, float]:
    """Median, and the lowest and highest repetition."""
    return {
        "milliseconds_median": statistics.median(milliseconds),
        "milliseconds_low": min(milliseconds),
        "milliseconds_high": max(milliseconds),
    }


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes a call takes at most on a GPU beyond what was there before; None on a CPU, which keeps no such count."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _timed(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return 1e3 * (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
