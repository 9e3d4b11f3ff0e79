"""What a comparison will take, told before it runs: a few steps of every model, timed, times the steps of its runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.compare.halving import PART
from experiments.compare.select import Selection
from experiments.configuration.schema import Config

STEPS = 3


def core_seconds(selections: Sequence[Selection]) -> tuple[float, float]:
    """Processor seconds of all training steps of a comparison: with the trials of the grid, and with all it may add.

    Start-up, validation and scoring come on top. Timed on one thread of this machine's processor.
    """
    least = most = 0.0
    for selection in selections:
        config = selection.trials[0].planned.config
        compare, trials = config.compare, len(selection.trials)
        run = step_seconds(config) * config.trainer.max_steps
        grown = trials + 2 * compare.extend * trials // len(compare.rates)
        least += run * (compare.seeds + _whole_runs(trials, compare.halving))
        most += run * (compare.seeds + _whole_runs(grown, compare.halving))
    return least, most


def minutes(least: float, most: float) -> str:
    """Core-seconds as a sentence's part."""
    return f"about {least / 60:.1f} core-minutes, {most / 60:.1f} where every best rate lies at an end"


def _whole_runs(trials: int, halving: bool) -> float:
    """The trials of a model counted as whole runs: with halving the worse half trains for a part alone."""
    to_the_end = math.ceil(trials / 2) if halving else trials
    return to_the_end + (trials - to_the_end) / PART


def step_seconds(config: Config) -> float:
    """Processor seconds of one training step of a model on a batch of its task, after one that is not counted."""
    torch.set_num_threads(1)
    device, length = torch.device("cpu"), config.data.seq_len
    model = make_model(config, config.model, length, device)
    step = TrainingStep(config, model, random_tokens(config, config.data.batch_size, length, device))
    step()
    start = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - start) / STEPS
