"""Timing alternatives against each other in one process: in turns, over growing lengths, forward and backward."""

from __future__ import annotations

import functools
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

if TYPE_CHECKING:
    from experiments.configuration.schema import BenchConfig


CPU = torch.device("cpu")


def interleaved(
    alternatives: dict[str, Callable[[], object]],
    repeats: int,
    device: torch.device,
    warm_up: int = 1,
    clock: Callable[[Callable[[], object], torch.device], float] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds of every repetition of every alternative, interleaved, so that drift affects all alike.

    clock: times one call; None: the wall clock, until the device is idle again.
    """
    clock = clock or _timed
    for call in alternatives.values():
        for _ in range(warm_up):
            clock(call, device)
    out: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, call in alternatives.items():
            out[name].append(clock(call, device))
    return out


def interleaved_within(
    alternatives: dict[str, Callable[[], object]], repeats: int, device: torch.device, seconds: float
) -> dict[str, list[float]]:
    """`interleaved`, with at most `repeats` rounds and as many as fit into so many seconds after a first one.

    The first round is the warm-up; where no three others fit, it counts as well.
    """
    first = interleaved(alternatives, 1, device, warm_up=0)
    rounds = min(repeats, int(1e3 * seconds / sum(times[0] for times in first.values())))
    more = interleaved(alternatives, rounds, device, warm_up=0)
    return more if rounds >= min(repeats, 3) else {name: first[name] + more[name] for name in more}


def on_device(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds that a GPU itself is busy with a call, from cold caches; elsewhere those of the wall clock.

    Writing a large buffer beforehand empties the caches, and while the GPU is busy with that the call is already
    being launched, so that the launch overhead of Python is hidden, as it is in a model.
    """
    if device.type != "cuda":
        return _timed(call, device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        _scratch(device).zero_()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


@functools.cache
def _scratch(device: torch.device) -> torch.Tensor:
    """At most 1 GiB: a quarter of a millisecond on the fastest GPUs."""
    size = min(2**30, torch.cuda.get_device_properties(device).total_memory // 16)
    return torch.empty(size, dtype=torch.int8, device=device)


def summary(milliseconds: list[float]) -> dict[str, float]:
    """Median, and the lowest and highest repetition."""
    return {
        "milliseconds_median": statistics.median(milliseconds),
        "milliseconds_low": min(milliseconds),
        "milliseconds_high": max(milliseconds),
    }


def ratios(peer: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Median of the ratios peer / own of repetitions taken in turns, and the interval of it."""
    quotients = [p / t for p, t in zip(peer, ours, strict=True)]
    return statistics.median(quotients), *bootstrap_interval(quotients)


def bootstrap_interval(ratios: list[float], draws: int = 10_000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median.

    Of up to five ratios it is their range, which holds the median of all in 1 − 2^(1 − n) of cases: 75 % for three,
    88 % for four, 94 % for five.
    """
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def peak_memory(call: Callable[[], object], device: torch.device) -> int | None:
    """Peak bytes of a call on a GPU beyond those allocated before; None on a CPU, which does not count them."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def free_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more, on a GPU PyTorch's cache of it too."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _timed(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return 1e3 * (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Sequence lengths, one after the other until bench.budget_s is used up.

SHORT_LENGTHS = [512, 1024, 2048, 4096]
GPU_LENGTHS = [512 * 2**i for i in range(9)]
"""Sequence lengths of suites, unless bench.lengths gives some."""


def lengths_within_budget(bench: BenchConfig, default: list[int], title: str) -> Iterator[int]:
    """Yield bench.lengths (null: `default`) under a progress bar; print which are left out once the time is used up."""
    deadline = time.monotonic() + bench.budget_s
    for length in tqdm(bench.lengths or default, desc=title, unit="length"):
        if time.monotonic() > deadline:
            tqdm.write(f"bench.budget_s={bench.budget_s:g} is used up; lengths from {length} on are left out")
            return
        yield length


# Forward and backward passes.

Form = Callable[[], Any]
"""A call without arguments that returns tensors, nested in lists and tuples and partly None."""


@torch.no_grad()
def forward(form: Form, leaves: list[Tensor]) -> None:
    """Run one forward pass without a graph; the leaves are not needed."""
    form()


def forward_backward(form: Form, leaves: list[Tensor]) -> None:
    """Run one forward pass and differentiate its outputs with respect to the leaves, under gradients of ones."""
    outputs = [x for x in _tensors(form()) if x.requires_grad]
    torch.autograd.grad(outputs, leaves, [torch.ones_like(x) for x in outputs], allow_unused=True)


MODES = {"forward": forward, "forward+backward": forward_backward}
"""The passes by the name that tables give them."""


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, list | tuple):
        for x in outputs:
            yield from _tensors(x)
