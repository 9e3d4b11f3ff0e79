"""suite=latency: one forward pass of the dense and of the HyperGraph model against sequence length.

Weights are untrained, so routing is nearly balanced; a trained router's imbalance (see the report) costs in proportion.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.model_steps import autocast, random_tokens
from experiments.bench.timing import SHORT_LENGTHS, lengths_within_budget
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from zoo.model import LanguageModel

PATTERNS = {"transformer": "F", "hypergraph": "interlaced_sf"}


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of both models at every length, batch 1, interleaved; ratio: dense time over this model's time."""
    device = pick_device(config.device)
    half = pick_precision(config.trainer.precision, device) == "bf16"
    models = {name: _model(config, pattern, device) for name, pattern in PATTERNS.items()}
    rows: list[dict[str, Any]] = []
    for length in lengths_within_budget(config.bench, SHORT_LENGTHS, "latency"):
        tokens = random_tokens(config, 1, length, device)
        calls = {name: (lambda m=model, t=tokens: _forward(config, m, t)) for name, model in models.items()}
        times = timing.interleaved(calls, config.bench.repeats, device, warm_up=2)
        dense = timing.summary(times["transformer"])["milliseconds_median"]
        for name, milliseconds in times.items():
            row = result_table.row(
                "latency",
                name,
                milliseconds,
                dense,
                device,
                backend=config.model.backend,
                mode="forward",
                precision="bfloat16" if half else "float32",
                tokens=length,
                peak_memory_bytes=timing.peak_memory(calls[name], device),
            )
            tqdm.write(result_table.format_row(row))
            rows.append(row)
    return rows


def _model(config: Config, pattern: str, device: torch.device) -> LanguageModel:
    model_config = dataclasses.replace(config.model, pattern=pattern)
    model = LanguageModel(model_config, vocab_size=config.nominal_vocabulary, seq_len=config.data.seq_len)
    return model.to(device).eval()


@torch.no_grad()
def _forward(config: Config, model: LanguageModel, tokens: torch.Tensor) -> None:
    with autocast(config, tokens.device):
        model(tokens)
