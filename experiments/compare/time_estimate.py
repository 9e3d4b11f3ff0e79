"""Time that a comparison will take, told before it runs: from a few timed steps of every model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.compare.select import CONTENDERS, PART, Selection
from experiments.configuration.schema import CompareConfig, Config

STEPS = 3


def core_seconds(selections: Sequence[Selection]) -> tuple[float, float]:
    """Processor seconds of all training steps of a comparison: with the trials of the grid, and with all it may add.

    Further seeds are counted for two settings of a model; a third that takes the place of one of them comes on top.
    Start-up, validation and scoring come on top. Timed on one thread of this machine's processor.
    """
    least = most = 0.0
    for selection in selections:
        config = selection.trials[0].planned.config
        compare, trials = config.compare, len(selection.trials)
        run = step_seconds(config) * config.trainer.max_steps
        grown = trials + 2 * compare.extend * trials // len(compare.rates)
        least += run * (compare.seeds + _selecting(trials, compare))
        most += run * (compare.seeds + _selecting(grown, compare))
    return least, most


def minutes(least: float, most: float) -> str:
    """Return the least and the most core-seconds of a comparison in words, as core-minutes."""
    return f"about {least / 60:.1f} core-minutes, {most / 60:.1f} where every best rate lies at an end"


def _selecting(trials: int, compare: CompareConfig) -> float:
    """The runs that select a model's settings counted as whole ones: its trials, and repeats of the best."""
    repeated = min(CONTENDERS, _to_the_end(trials, compare.halving))
    return _whole_runs(trials, compare.halving) + repeated * (compare.selection_seeds - 1)


def _whole_runs(trials: int, halving: bool) -> float:
    """The trials of a model counted as whole runs: with halving the worse half trains for a part alone."""
    to_the_end = _to_the_end(trials, halving)
    return to_the_end + (trials - to_the_end) / PART


def _to_the_end(trials: int, halving: bool) -> int:
    return math.ceil(trials / 2) if halving else trials


def step_seconds(config: Config) -> float:
    """Processor seconds of one training step of a model on its task: those of a micro-batch, after one not counted."""
    torch.set_num_threads(1)
    device, length = torch.device("cpu"), config.data.seq_len
    model = make_model(config, config.model, length, device)
    step = TrainingStep(config, model, random_tokens(config, config.data.batch_size, length, device))
    step()
    start = time.process_time()
    for _ in range(STEPS):
        step()
    return config.trainer.accumulate * (time.process_time() - start) / STEPS
