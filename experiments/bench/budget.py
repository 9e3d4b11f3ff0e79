"""The sequence lengths of suites, one after the other until bench.budget_s is used up."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tqdm import tqdm

from experiments.configuration.schema import BenchConfig

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
