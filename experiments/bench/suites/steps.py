"""suite=steps: a training step of presets with equally many parameters, against the plain transformer's.

One sequence of each of bench.lengths a step (bench.tokens: as many as that many tokens allow), at the configured width,
heads and depth. Steps of all presets are taken in turns, in one process. ratio: the transformer's time over this
one's, the median of the pairs, with its 95 % interval in ratio_low and ratio_high.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from zoo.matching import match_parameters

LENGTHS = [1024, 4096]
PLAIN = "transformer"
SECONDS = 120.0
"""About the time that one length may take."""
COLUMNS = [*result_table.COLUMNS, "ratio_low", "ratio_high"]


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every preset at every length; the transformer is always among them."""
    device, rows = pick_device(config.device), []
    names = matching_names(config.bench.cases, list(architectures(config.model)))
    for length in config.bench.lengths or LENGTHS:
        data = dataclasses.replace(config.data, seq_len=length)
        batch = max(1, (config.bench.tokens or length) // length)
        rows += _rows(
            dataclasses.replace(config, data=data), [PLAIN, *(x for x in names if x != PLAIN)], batch, device
        )
    return rows


def matched_steps(
    config: Config, names: list[str], batch: int, device: torch.device
) -> dict[str, TrainingStep]:
    """The training steps of these presets with as many parameters as the transformer, on one batch of tokens."""
    length, presets = config.data.seq_len, architectures(config.model)
    tokens = random_tokens(config, batch, length, device)
    return {
        name: TrainingStep(
            config, make_model(config, match_parameters(presets[name], length), length, device), tokens
        )
        for name in names
    }


def _rows(config: Config, names: list[str], batch: int, device: torch.device) -> list[dict[str, Any]]:
    length = config.data.seq_len
    with tqdm(total=1, desc=f"steps of {length} tokens", unit="round") as bar:
        steps = matched_steps(config, names, batch, device)
        times = timing.interleaved_within(steps, max(config.bench.repeats, 5), device, SECONDS)
        bar.update()
    rows = []
    for name, milliseconds in times.items():
        ratio, low, high = timing.ratios(times[PLAIN], milliseconds)
        row = result_table.row("steps", name, milliseconds, 0.0, device, tokens=length)
        row |= {"batch": batch, "backend": config.model.backend, "mode": "training step"}
        row["precision"] = pick_precision(config.trainer.precision, device)
        row |= {"ratio": ratio, "ratio_low": low, "ratio_high": high}
        tqdm.write(result_table.format_row(row))
        rows.append(row)
    return rows
