"""Speed of the models of a verdict: training step, prefill and decoding, in turns with the transformer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from experiments.bench import result_table, timing
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.bench.suites.inference.calls import STEPS, decode_call, prefill_call
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from experiments.verdict.model_sizes import matched
from zoo.config import ModelConfig

COLUMNS = [*result_table.COLUMNS, "ratio_low", "ratio_high"]
MODES = ("training step", "prefill", "decode")
REPEATS, SECONDS = 15, 20.0
"""Rounds of all models, and about the time that one mode at one length may take."""


def speed_rows(
    config: Config, models: dict[str, ModelConfig], length: int, mode: str
) -> list[dict[str, Any]]:
    """A row for every model but the first, beside the first, and for the second beside the third.

    ratio: the time of the one beside it (peer) over this one's, the median of pairs, with its interval.
    One sequence of `length` tokens: a training step on it, reading it as a prompt, a token after it.
    """
    device = pick_device(config.device)
    calls = {name: _call(matched(config, model, length), mode, device) for name, model in models.items()}
    times = timing.interleaved_within(calls, REPEATS, device, SECONDS)
    if mode == "decode":
        times = {name: [each / STEPS for each in milliseconds] for name, milliseconds in times.items()}
    plain, block, *others = calls
    pairs = [(name, plain) for name in (block, *others)] + [(block, other) for other in others]
    shared = {"tokens": length, "mode": mode, "backend": config.model.backend}
    shared["precision"] = pick_precision(config.trainer.precision, device)
    return [_row(one, peer, times, device) | shared for one, peer in pairs]


def _row(one: str, peer: str, times: dict[str, list[float]], device: torch.device) -> dict[str, Any]:
    ratio, low, high = timing.ratios(times[peer], times[one])
    row = result_table.row("verdict", one, times[one], 0.0, device)
    return row | {"peer": peer, "ratio": ratio, "ratio_low": low, "ratio_high": high}


def _call(config: Config, mode: str, device: torch.device) -> Callable[[], object]:
    """The call of one mode on random tokens."""
    length = config.data.seq_len
    model = make_model(config, config.model, length, device)
    tokens = random_tokens(config, 1, length, device)
    if mode == "training step":
        return TrainingStep(config, model, tokens)
    if mode == "prefill":
        return prefill_call(model.eval(), tokens)
    return decode_call(model.eval(), tokens, torch.float32, rounds=REPEATS + 1)
