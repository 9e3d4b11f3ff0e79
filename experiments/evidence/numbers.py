"""Numbers with the interval that another machine's must lie in."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.bench import timing

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Bounds of rounding errors of small well-conditioned problems; 1e-5 is the tolerance that the SHC document asserts."""

ANOTHER_HOUR = 1.5
"""What a ratio of times may differ by, either way, from what one process measures: between hours and days on one
machine medians of Sinkhorn's time over Cayley's came out 1.3 times apart, which no bootstrap over rounds can know.
"""


@dataclass(frozen=True)
class Number:
    """A measured number.

    low, high: its interval: equal to the value for a count; from 0 to its bound for a rounding error; the 2.5 and
    97.5 percentiles of draws, or that of paired times with room for another hour. timed: a time, which other machines
    need not repeat.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str = ""
    timed: bool = False


def exact(name: str, value: float, unit: str = "") -> Number:
    """Return a count, which is the same on every machine: its interval is the number itself."""
    return Number(name, float(value), float(value), float(value), unit)


def bounded(name: str, error: float | Tensor, bound: float, unit: str = "") -> Number:
    """Return an error of rounding with the interval from 0 to its bound, which no machine may exceed."""
    return Number(name, float(error), 0.0, bound, unit)


def near(name: str, value: float, unit: str = "", room: float = 1e-3) -> Number:
    """Return a number computed in fp64 from fixed seeds, with the interval (1 ± room)·value for other rounding."""
    return Number(name, value, (1 - room) * value, (1 + room) * value, unit)


def sampled(name: str, draws: Tensor, unit: str = "") -> Number:
    """Return the median of draws from fixed seeds, with the range of 95 % of them as its interval."""
    low, value, high = torch.quantile(draws.double().flatten(), torch.tensor([0.025, 0.5, 0.975]).double())
    return Number(name, value.item(), low.item(), high.item(), unit)


def in_turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of this process's processor time of every call, in turns: other work on the machine counts less."""

    def clock(call: Callable[[], object], _device: torch.device) -> float:
        began = time.process_time()
        call()
        return 1e3 * (time.process_time() - began)

    return timing.interleaved(calls, repeats, timing.CPU, clock=clock)


def paired(name: str, peer: Sequence[float], ours: Sequence[float], unit: str = "times") -> Number:
    """The median ratio peer / own of times taken in turns; its bootstrap interval with room for `ANOTHER_HOUR`."""
    value, low, high = timing.ratios(list(peer), list(ours))
    return Number(name, value, low / ANOTHER_HOUR, high * ANOTHER_HOUR, unit, timed=True)


def milliseconds(name: str, times: Sequence[float]) -> Number:
    """The median time, from the shortest to the longest."""
    return Number(name, statistics.median(times), min(times), max(times), "ms", timed=True)
