"""suite=cpu: the torch forms on a CPU, as ratios of times taken in one run, in four parts.

recurrence   delta_rule, mesa and memory_mixture against their recurrences      ratio: recurrence / this
length       every mixer alone at growing lengths         ratio: time a token at the shortest / here (1: flat)
step         a training step of every preset, equal parameters      ratio: the transformer's time / this one's
memory       peak memory of a forward and backward pass of every mixer at the longest length, each in its own process
"""

from __future__ import annotations

from typing import Any

import torch

from experiments.bench.suites.cpu import lengths, memory, recurrences, training_steps
from experiments.configuration.schema import Config
from zoo.errors import UserError

LENGTHS = [1024, 2048, 4096, 8192]


def run(config: Config) -> list[dict[str, Any]]:
    """The rows of all four parts. Raises UserError where a GPU is asked for."""
    if config.device == "cuda":
        raise UserError("suite=cpu measures the CPU; for a GPU: suite=attention or suite=latency")
    tried = sorted(config.bench.lengths or LENGTHS)
    repeats = config.bench.repeats
    rows = recurrences.run(min(tried[-1], recurrences.TOKENS), repeats)
    rows += lengths.run(tried, repeats)
    rows += training_steps.run(config)
    return rows + memory.run(tried[-1], torch.get_num_threads())
